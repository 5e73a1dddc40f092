"""A checked split on its way into a prepared dataset."""

from dataclasses import dataclass, field, replace

import numpy as np

from kdcore.data.checks import Rows
from kdcore.data.prepared import Role, SplitInfo
from kdcore.data.splitting import take


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

    def choose(self, rows: np.ndarray, note: str = "") -> "Part":
        """The chosen rows only (numbers or a mask), with one more note."""
        chosen = replace(self.rows, table=take(self.rows.table, rows))
        return replace(self, rows=chosen, notes=(*self.notes, note) if note else self.notes)

    def info(self, max_length: int) -> SplitInfo:
        """What is written about this split; `max_length` is the pair's."""
        return SplitInfo(self.name, self.role, len(self), self.source, self.labels, self.label_map,
                         "; ".join(self.notes), self.rows.hidden, self.max_length or max_length)
