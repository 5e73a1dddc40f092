"""Which report is shown: that with this machine's measurements, as long as it is of the same numbers as the out.

DVC brings `results/report` back from its cache without running the stage; what lies in `results/measured` is then of
other numbers.
"""

from pathlib import Path

from kdcore.layout import Layout
from kdcore.lineage import hash_folder

MARK = "report.of"


def mark(layout: Layout) -> None:
    """Note of which report the one in `results/measured` is."""
    (layout.measured / MARK).write_text(hash_folder(layout.report), encoding="utf-8")


def folder(layout: Layout) -> Path:
    """Where the report to show lies: `results/measured`, or `results/report`."""
    path = layout.measured / MARK
    if path.is_file() and layout.report.is_dir() and path.read_text(encoding="utf-8") == hash_folder(layout.report):
        return layout.measured
    return layout.report
