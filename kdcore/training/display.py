"""Progress for people: a bar on a terminal; elsewhere a line per epoch and now and then, so that logs stay readable."""

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 60.0
SECONDS_BETWEEN_MOVES = 0.1


class Display:
    """Progress of one training on stderr."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        first = os.environ.get("RANK", "0") == "0"  # the other processes of a distributed training keep quiet
        self.console = console or Console(stderr=True, soft_wrap=True, highlight=False, quiet=not first)
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(), console=self.console, transient=True,
            disable=not self.console.is_terminal, refresh_per_second=4)
        self._name = title
        self._metrics = ""
        self._begun_at = self._said_at = time.monotonic()
        self._moved_at = 0.0
        self._begun = self._steps = 0

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=None, values="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, phase: str, step: int, steps: int) -> None:
        """Start a phase of `steps`, at `step` when it resumes."""
        self._name = f"{self.title} {phase}"
        self._begun, self._steps = step, steps
        self._begun_at = self._said_at = time.monotonic()
        self._bar.reset(self._task, total=steps, completed=step, description=self._name)
        if step:
            self.note(f"{self._name}: resumes after step {step} of {steps}")

    def step(self, step: int, epoch: float, epochs: float, loss: float) -> None:
        """Move the bar, or say a line when the last one is long ago."""
        now = time.monotonic()
        values = f"epoch {epoch:.2f}/{epochs:g}  loss {loss:.4f}{self._metrics}"
        if self.console.is_terminal:
            if now - self._moved_at >= SECONDS_BETWEEN_MOVES:
                self._moved_at = now
                self._bar.update(self._task, completed=step, values=values)
        elif now - self._said_at >= SECONDS_BETWEEN_LINES:
            left = (now - self._begun_at) / max(step - self._begun, 1) * (self._steps - step)
            self.note(f"{self._name}: step {step}/{self._steps}  {values}  {left:,.0f} s left")

    def epoch(self, entry: Mapping[str, Any], epochs: float, seconds: float, best: bool) -> None:
        """One line that stays; `best` marks the epoch with a star.

        It says so where the student answers every row alike, as one does whose states have collapsed.
        """
        development = entry.get("development", {})
        parts = "  ".join(f"{name} {value:.4f}" for name, value in entry["parts"].items())
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in development.items()
                            if isinstance(value, float) and name != "score")
        if development.get("degenerate"):
            metrics += " (degenerate)"
        self._metrics = f"  {metrics}"
        loss = "none" if entry["loss"] is None else f"{entry['loss']:.4f} ({parts})"
        skipped = f"  {entry['skipped_steps']} steps skipped" if entry["skipped_steps"] else ""
        self.note(f"{self._name}: epoch {entry['epoch']:g}/{epochs:g}  loss {loss}  {metrics}{' *' if best else ''}  "
                  f"{seconds:.1f} s{skipped}")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._said_at = time.monotonic()
        self.console.print(text, markup=False)
