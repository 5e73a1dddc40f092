"""Metrics as they come: always into a local file of JSON lines, and to a tracker as far as it works."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """What `kdcore.tracking.Run` does for a training."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""


class Journal:
    """One training's file of JSON lines. A tracker that fails costs nothing but its own copy."""

    def __init__(self, path: Path, tracker: Tracker | None = None) -> None:
        """Only the first process of a distributed training writes."""
        self.path = path
        self.tracker = tracker
        self.failures = 0
        self._writes = os.environ.get("RANK", "0") == "0"

    def resume(self, step: int) -> None:
        """Begin the file, or drop the lines after `step`, which come again."""
        if not self._writes:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._lines() if line["step"] <= step] if step else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics; `step` counts over all phases."""
        if not self._writes:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | dict(metrics)) + "\n")
        if self.tracker is not None:
            try:
                self.tracker.log(step, metrics)
            except Exception as error:  # whatever the tracker does, the training goes on
                self.failures += 1
                if self.failures == 1:
                    log.warning("the tracker failed (%s); training goes on, all metrics are in %s", error, self.path)

    def _lines(self) -> list[dict[str, Any]]:
        """The complete lines; a killed process may have left half a line at the end."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
