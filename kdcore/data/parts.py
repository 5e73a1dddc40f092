"""A checked split on its way into a prepared dataset."""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from kdcore.data.checks import HIDDEN, Rows
from kdcore.data.prepared import Role, SplitInfo
from kdcore.data.splitting import take

SOURCE_ID = "source_id"


@dataclass(frozen=True)
class Part:
    """Rows of one split and what becomes its `SplitInfo`. `notes` are joined; `max_length` None is the pair's."""

    name: str
    role: Role
    rows: Rows
    source: str
    labels: tuple[str, ...] | None
    label_map: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    max_length: int | None = None

    def __len__(self) -> int:
        return self.rows.table.num_rows

    @property
    def ids(self) -> pa.Array:
        """What each row is called in its source, as text: its id, or its number from 0 where the source gives no ids;
        null for a row that alone has none."""
        table = self.rows.table
        if SOURCE_ID in table.column_names:
            return table.column(SOURCE_ID).combine_chunks()
        return pa.array(map(str, range(len(self))), pa.large_string())

    def choose(self, rows: np.ndarray, note: str = "") -> "Part":
        """The chosen rows only (numbers or a mask), with one more note. They keep what they are called."""
        table = self.rows.table
        if SOURCE_ID not in table.column_names:
            table = table.append_column(SOURCE_ID, self.ids)
        chosen = replace(self.rows, table=take(table, rows))
        return replace(self, rows=chosen, notes=(*self.notes, note) if note else self.notes)

    @property
    def has_label(self) -> np.ndarray:
        """True at rows whose label is known: bool [n]."""
        labels = self.rows.table.column("label").to_numpy()
        return ~np.isnan(labels) if labels.dtype.kind == "f" else labels != HIDDEN

    def without_labels(self) -> "Part":
        """The same rows, their labels forgotten."""
        table = self.rows.table
        kind = table.schema.field("label").type
        empty = pa.array(np.full(len(self), np.nan if pa.types.is_floating(kind) else HIDDEN), kind)
        table = table.set_column(table.column_names.index("label"), "label", empty)
        return replace(self, rows=replace(self.rows, table=table, hidden=True))

    def join(self, more: pa.Table, note: str) -> "Part":
        """These rows and further ones, as a training split takes them in; with one more note.

        Rows with a label come before rows without, each in their old order, these before the further ones: so ids of
        rows that were here and have a label stay, and what learns from labels alone takes the first rows.

        Args:
            more: text, [text_pair] and label of the types that these rows have; label -1 (NaN for scores) where there
                is none. With a column `source_id` where the rows are of the same source, so that it tells them apart.
        """
        own = self.rows.table
        if SOURCE_ID not in own.column_names:
            own = own.append_column(SOURCE_ID, self.ids)
        if SOURCE_ID not in more.column_names:
            more = more.append_column(SOURCE_ID, pa.nulls(more.num_rows, pa.large_string()))
        table = pa.concat_tables([own, more.select(own.column_names).cast(own.schema)]).combine_chunks()
        joined = replace(self, rows=replace(self.rows, table=table), notes=(*self.notes, note))
        known = joined.has_label
        order = np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)])
        return replace(joined, rows=replace(joined.rows, table=take(table, order)))

    def info(self, max_length: int) -> SplitInfo:
        """What is written about this split; `max_length` is the pair's."""
        return SplitInfo(self.name, self.role, len(self), self.source, self.labels, self.label_map,
                         "; ".join(self.notes), self.rows.hidden, self.max_length or max_length,
                         0 if self.rows.hidden else int((~self.has_label).sum()))
