"""What is true of one machine and moment: times, memory, the runs in MLflow. No part of a study's outs.

Measurements stay where they are when DVC brings models of other settings back from its cache. So each says of which
model it is, and counts for no other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kdcore.analysis.results import TEACHER
from kdcore.errors import UserError
from kdcore.layout import Layout
from kdcore.lineage import record_key

Records = Mapping[str, Mapping[str, Any]]
"""How the models of a system came about, by run name."""


@dataclass(frozen=True)
class Measured:
    """Of each system (dataset, name): `costs` are those of `costs` below; `runs` are the ids of its trainings in MLflow
    by run name. `hashes`: DVC's, by the path of an out."""

    costs: Mapping[tuple[str, str], Mapping[str, Any]]
    runs: Mapping[tuple[str, str], Mapping[str, str]]
    hashes: Mapping[str, str]
    revision: str
    tracking: str
    """Where MLflow keeps runs."""

    def cost(self, dataset: str, system: str) -> Mapping[str, Any]:
        """What was measured of a system; empty when nothing was."""
        return self.costs.get((dataset, system), {})


def costs(layout: Layout, dataset: str, system: str, records: Records) -> dict[str, Any]:
    """This machine's measurements of a system, absent ones left out: `latency` of its first seed, and seconds of
    training, `epoch_seconds` of an epoch and `train_seconds` of a whole run.

    Seconds are medians, of the epochs of all seeds and of seeds: work beside a training slows some of it down.
    """
    found: dict[str, Any] = {}
    for run in _read(layout.measured / f"evaluate@{dataset}-{system}.json", records).values():
        if "latency" in run:
            found.setdefault("latency", run["latency"])
    return found | _seconds(list(_training(layout, dataset, system, records).values()))


def runs(layout: Layout, dataset: str, system: str, records: Records) -> dict[str, str]:
    """The MLflow runs of a system's trainings, by run name."""
    return {name: run["mlflow_run"] for name, run in _training(layout, dataset, system, records).items()
            if "mlflow_run" in run}


def _training(layout: Layout, dataset: str, system: str, records: Records) -> dict[str, dict[str, Any]]:
    stage = f"teacher@{dataset}" if system == TEACHER else f"distill@{dataset}-{system}"
    return _read(layout.measured / f"{stage}.json", records)


def _seconds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The first epoch of each seed warms up and does not count among the epochs."""
    seconds = {"epoch_seconds": [second for run in runs
                                 for second in run.get("epoch_seconds", [])[1:] or run.get("epoch_seconds", [])],
               "train_seconds": [run["train_seconds"] for run in runs if "train_seconds" in run]}
    return {name: median(values) for name, values in seconds.items() if values}


def _read(path: Path, records: Records) -> dict[str, dict[str, Any]]:
    """What was measured of these models, by run name."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); delete it, it holds measurements only") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected a mapping; delete it, it holds measurements "
                        "only")
    known = {record_key(record) for record in records.values()}
    return {name: run for name, run in content.items() if isinstance(run, dict) and run.get("of") in known}
