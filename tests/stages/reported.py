"""A study that was evaluated, and its report: what the tests of the stage `report` share."""

import json
from pathlib import Path
from typing import Any

import pytest

from kdcore import config
from kdcore.layout import Layout
from kdcore.lineage import record_key
from kdcore.stages import report
from tests.analysis.evaluations import write_study
from tests.evaluation import synthetic

METHODS = ("finetune", "vanilla_kd", "rail_kd_l")
LATENCY = {"batch_1": {"p50_ms": 4.2, "p95_ms": 5.1}, "batch_32": {"p50_ms": 40.0, "p95_ms": 44.0},
           "peak_memory_bytes": 500 * 2**20, "peak_memory_of": "process", "device": "CPU x86_64", "threads": 2}
"""As `evaluate` measures it."""


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdcore.analysis.results.RESAMPLES", 300)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """All methods on the dataset `movies`, evaluated."""
    return write_study(tmp_path)[0]


def study(datasets: tuple[str, ...] = ("movies",), methods: tuple[str, ...] = METHODS) -> config.Study:
    """The settings of such a study."""
    return synthetic.study(methods, (1, 2, 3), datasets)


def run(layout: Layout, **selection: tuple[str, ...]) -> str:
    """Write the report of a selection of `study`; returns its Markdown."""
    report.run(study(**selection), layout)
    return (layout.report / "report.md").read_text()


def numbers(layout: Layout) -> dict[str, Any]:
    """The report as `results.json` has it."""
    return json.loads((layout.report / "results.json").read_text())


def measure(layout: Layout, stage: str, runs: dict[str, dict[str, Any]]) -> None:
    """Write what a stage of `movies` measured, by run name: of the models that were evaluated."""
    method = stage.partition("-")[2] or "teacher"
    context = json.loads((layout.evaluation("movies", method) / "context.json").read_text())
    content = {run: values | {"of": record_key(context["runs"][run]["training"])} for run, values in runs.items()}
    layout.measured.mkdir(parents=True, exist_ok=True)
    (layout.measured / f"{stage}.json").write_text(json.dumps(content))


def edit_trainings(layout: Layout, dataset: str, system: str, **changes: Any) -> None:
    """Change what the records of a system's trainings say."""
    path = layout.evaluation(dataset, system) / "context.json"
    content = json.loads(path.read_text())
    for found in content["runs"].values():
        training = found["training"]
        training |= {key: value for key, value in changes.items() if key != "keep"}
        if "keep" in changes:
            training["phases"][-1]["keep"] = changes["keep"]
    path.write_text(json.dumps(content))
