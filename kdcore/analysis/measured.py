"""What is true of one machine and moment: times, memory, the runs in MLflow. No part of a study's outs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdcore.analysis.results import TEACHER
from kdcore.errors import UserError
from kdcore.layout import Layout


@dataclass(frozen=True)
class Measured:
    """Of each system (dataset, name): `costs` has `latency` of its first seed and `epoch_seconds`, what is absent left
    out; `runs` are the ids of its trainings in MLflow by run name. `hashes`: DVC's, by the path of an out."""

    costs: Mapping[tuple[str, str], Mapping[str, Any]]
    runs: Mapping[tuple[str, str], Mapping[str, str]]
    hashes: Mapping[str, str]
    revision: str
    tracking: str
    """Where MLflow keeps runs."""

    def cost(self, dataset: str, system: str) -> Mapping[str, Any]:
        """What was measured of a system; empty when nothing was."""
        return self.costs.get((dataset, system), {})


def costs(layout: Layout, dataset: str, system: str) -> dict[str, Any]:
    """This machine's measurements of a system: `latency` of its first seed, `epoch_seconds`; absent ones left out."""
    found: dict[str, Any] = {}
    for run in _read(layout.measured / f"evaluate@{dataset}-{system}.json").values():
        if isinstance(run, dict) and "latency" in run:
            found.setdefault("latency", run["latency"])
    return found | _epoch_seconds(_training(layout, dataset, system))


def runs(layout: Layout, dataset: str, system: str) -> dict[str, str]:
    """The MLflow runs of a system's trainings, by run name."""
    return {name: run["mlflow_run"] for name, run in _training(layout, dataset, system).items()
            if isinstance(run, dict) and "mlflow_run" in run}


def _training(layout: Layout, dataset: str, system: str) -> dict[str, Any]:
    stage = f"teacher@{dataset}" if system == TEACHER else f"distill@{dataset}-{system}"
    return _read(layout.measured / f"{stage}.json")


def _epoch_seconds(content: dict[str, Any]) -> dict[str, float]:
    """Mean seconds of training per epoch over all seeds; the first epoch of each warms up and does not count."""
    seconds = [second for run in content.values() if isinstance(run, dict)
               for second in run.get("epoch_seconds", [])[1:] or run.get("epoch_seconds", [])]
    return {"epoch_seconds": sum(seconds) / len(seconds)} if seconds else {}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); delete it, it holds measurements only") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, expected a mapping; delete it, it holds measurements "
                        "only")
    return content
