"""Progress for people: a bar on a terminal, a line per epoch elsewhere, so that log files stay readable."""

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


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
        self._metric = ""
        self._shown = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=None, values="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, phase: str, step: int, steps: int) -> None:
        """Start the bar of a phase, at `step` when it resumes."""
        self._bar.reset(self._task, total=steps, completed=step, description=f"{self.title} {phase}")
        if step:
            self.note(f"{self.title} {phase}: resumes after step {step} of {steps}")

    def step(self, step: int, epoch: float, epochs: float, loss: float) -> None:
        """Move the bar, a few times a second at most."""
        now = time.monotonic()
        if now - self._shown < 0.1:
            return
        self._shown = now
        values = f"epoch {epoch:.2f}/{epochs:g}  loss {loss:.4f}{self._metric}"
        self._bar.update(self._task, completed=step, values=values)

    def epoch(self, entry: Mapping[str, Any], epochs: float, seconds: float, best: bool) -> None:
        """One line that stays."""
        parts = "  ".join(f"{name} {value:.4f}" for name, value in entry["parts"].items())
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in entry.get("development", {}).items()
                            if isinstance(value, float))
        loss = "-" if entry["loss"] is None else f"{entry['loss']:.4f}"
        self._metric = f"  {metrics}"
        skipped = f"  skipped steps {entry['skipped_steps']}" if entry["skipped_steps"] else ""
        self.note(f"{self.title} {entry['phase']}: epoch {entry['epoch']:g}/{epochs:g}  loss {loss} ({parts})  "
                  f"{metrics}{' *' if best else ''}  {seconds:.1f} s{skipped}")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, markup=False)
