"""A checked split on its way into a prepared dataset."""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from kdcore.data.checks import Rows
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

    def info(self, max_length: int) -> SplitInfo:
        """What is written about this split; `max_length` is the pair's."""
        return SplitInfo(self.name, self.role, len(self), self.source, self.labels, self.label_map,
                         "; ".join(self.notes), self.rows.hidden, self.max_length or max_length)
