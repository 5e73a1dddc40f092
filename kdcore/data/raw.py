"""Rows as a source gives them, before any check: a table, what its class ids are called, and how to name a row."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Raw:
    """One split or file of a source.

    where        what messages call it: a file, or source, configuration and split.
    class_names  names behind integer labels per column, where the source declares them.
    lines        line number of each row in a text file, counted from 1; None where rows have no lines.
    own          True for a user's own file: an empty text there is a mistake; in published sets it is only counted.
    unread       columns that are there too and were not read.
    """

    where: str
    table: pa.Table
    class_names: dict[str, tuple[str, ...]]
    lines: list[int] | None = None
    own: bool = False
    unread: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """All columns of the source."""
        return [*self.table.column_names, *self.unread]

    def row(self, index: int) -> str:
        """How to name row `index` (counted from 0) in a message."""
        if self.lines is not None:
            return f"{self.where}, line {self.lines[index]}"
        return f"{self.where}, row {index + 1}"
