"""Progress of long passes over rows: a bar on a terminal, a line now and then elsewhere, so that logs stay readable."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0


class RowProgress:
    """Counts rows on stderr. `done` of `total` rows are finished at the start, when a pass resumes."""

    def __init__(self, title: str, total: int, done: int = 0, console: Console | None = None) -> None:
        self.title = title
        self.total = total
        self.done = done
        self.console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=self.console, transient=True,
            disable=not self.console.is_terminal, refresh_per_second=4)
        self._start, self._done_at_start = time.monotonic(), done
        self._said = self._start

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=self.total, completed=self.done, rate="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    @property
    def rate(self) -> float:
        """Rows per second since this process began."""
        return (self.done - self._done_at_start) / max(time.monotonic() - self._start, 1e-9)

    def advance(self, rows: int) -> None:
        """Count rows that are finished."""
        self.done += rows
        self._bar.update(self._task, completed=self.done, rate=f"{self.rate:,.0f} rows/s")
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= SECONDS_BETWEEN_LINES and self.done < self.total:
            self._said = now
            left = (self.total - self.done) / max(self.rate, 1e-9)
            self.console.print(f"{self.title}: {self.done:,} of {self.total:,} rows, {self.rate:,.0f} rows/s, "
                               f"{left:,.0f} s left", markup=False)
