"""Tables as plain values, and their two renderings: aligned text for a terminal, Markdown for a file.

A table that would be wider than the terminal is cut into several with the same first column, so that no number is
ever wrapped or cut off.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from kdcore.analysis.statistics import Difference, Summary

WIDTH = 99
"""Characters a printed line may have."""

_SPECIAL = re.compile(r"[\\`*\[\]]|(?<!\w)_|_(?!\w)")
"""What Markdown takes for its own; an underscore within a word is none."""
_GAP = 2  # between columns: one of padding, one of the divider

NAMES = {"accuracy": "acc", "f1": "F1", "macro_f1": "macro F1", "matthews": "MCC", "pearson": "Pearson",
         "spearman": "Spearman"}
"""Metrics as table headings."""


@dataclass(frozen=True)
class Table:
    """`columns` are headings, a line break allowed in each; the first column holds names, the others numbers.

    `best`: the cells (row, column) that stand out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: row {row} has {len(row)} cells, expected {len(self.columns)}")


def percent(summary: Summary) -> str:
    """A share times 100 with its deviation over seeds: `83.6 ± 0.4`, or `83.6` for a single run."""
    spread = "" if summary.sd is None else f" ± {100 * summary.sd:.1f}"
    return f"{100 * summary.mean:.1f}{spread}"


def interval(difference: Difference) -> str:
    """A difference of shares times 100 with its 95 % interval: `+1.2 [+0.3, +2.0]`."""
    if difference.low is None or difference.high is None:
        return f"{100 * difference.mean:+.1f}"
    return f"{100 * difference.mean:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"


def probability(p: float | None) -> str:
    """A p-value with three decimals; empty where nothing was tested."""
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def plain(text: str) -> str:
    """Words of the user's own, labels and notes, as Markdown shows them unchanged."""
    return _SPECIAL.sub(r"\\\g<0>", text).replace("<", "&lt;")


def as_text(line: str) -> str:
    """A line of Markdown as a terminal shows it."""
    bare = re.sub(r"(?<!\\)(\*\*|`)", "", line)
    return html.unescape(re.sub(rf"\\({_SPECIAL.pattern})", r"\1", bare))


def markdown(table: Table) -> str:
    """A GitHub table without its title, the best in bold; the caption below it."""
    heading = [column.replace("\n", " ") for column in table.columns]
    rows = [[f"**{cell}**" if (row, column) in table.best else cell for column, cell in enumerate(cells)]
            for row, cells in enumerate(table.rows)]
    lines = [heading, ["---", *("---:" for _ in heading[1:])], *rows]
    text = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    return text + (f"\n{table.caption}\n" if table.caption else "")


def pieces(table: Table, width: int = WIDTH) -> list[Table]:
    """The table, or several with the same first column that each fit into `width` characters."""
    def needs(column: int) -> int:
        cells = [*table.columns[column].split("\n"), *(row[column] for row in table.rows)]
        return max(len(cell) for cell in cells) + _GAP

    groups: list[list[int]] = [[]]
    used = needs(0)
    for column in range(1, len(table.columns)):
        if groups[-1] and used + needs(column) > width:
            groups.append([])
            used = needs(0)
        groups[-1].append(column)
        used += needs(column)
    return [Table(table.title if number == 0 else f"{table.title} (continued)",
                  tuple(table.columns[i] for i in (0, *group)),
                  tuple(tuple(row[i] for i in (0, *group)) for row in table.rows),
                  table.caption if number == len(groups) - 1 else "",
                  frozenset((row, place) for row, column in table.best for place, i in enumerate((0, *group))
                            if i == column))
            for number, group in enumerate(groups)]


def show(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables within `WIDTH` columns, also where the output is no terminal."""
    console = console or Console(width=WIDTH, highlight=False, emoji=False, markup=False)
    for table in (piece for whole in tables for piece in pieces(whole)):
        drawn = RichTable(title=table.title, box=SIMPLE_HEAD, title_justify="left", title_style="bold",
                          padding=(0, 0, 0, _GAP - 1), pad_edge=False, show_edge=False)
        for number, column in enumerate(table.columns):
            drawn.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
        for number, row in enumerate(table.rows):
            drawn.add_row(*(Text(cell, "bold" if (number, column) in table.best else "")
                            for column, cell in enumerate(row)))
        console.print(drawn)
        console.print(table.caption + "\n" if table.caption else "", style="dim")
