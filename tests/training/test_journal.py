"""What is logged: every term, as numbers, in a local file whatever the tracker does (A45, A47, A84)."""

import gc
import json
import math
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.training import display, trainer
from kdcore.training.display import Display
from kdcore.training.distiller import Distiller
from kdcore.training.journal import Journal
from kdcore.training.precision import Precision
from tests.training.doubles import Watched, watched
from tests.training.problem import lines, phases_of, run, settings, steps, tiny_student


class Broken:
    """A tracker that is down."""

    def __init__(self) -> None:
        self.calls = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("no route to host")


class Kept:
    """A tracker that works."""

    def __init__(self) -> None:
        self.got: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.got.append((step, dict(metrics)))


def test_every_term_by_name(prepared: Prepared, folder: Path) -> None:
    tracker = Kept()
    result = run(prepared, folder, "rail_kd_l", tracker=tracker)
    for line in steps(folder):
        assert {"loss/label", "loss/kd", "loss/rail", "layer/1", "layer/2", "collapse"} <= line.keys()
        parts = sum(line[f"loss/{name}"] for name in ("label", "kd", "rail")) / 3
        assert line["loss"] == pytest.approx(parts, rel=1e-6)
    for entry in result.record["history"]:
        assert entry["loss"] == pytest.approx(sum(entry["parts"].values()) / 3, rel=1e-6)
        assert entry["diagnostics"]["layer/1"] in (1.0, 2.0)
        assert entry["diagnostics"]["layer/1"] < entry["diagnostics"]["layer/2"] <= 3.0
    assert [{"step": step} | values for step, values in tracker.got] == lines(folder)
    for line in lines(folder):
        assert all(type(value) in (int, float) and math.isfinite(value) for value in line.values())
    json.dumps(result.record, allow_nan=False)


def test_no_point_of_an_episode_hides_one_of_another(prepared: Prepared, folder: Path) -> None:
    """Steps go on over episodes; a reward is there as soon as it is earned, a score at the end of its episode."""
    tracker = Kept()
    hyper = {"reward_steps": 4, "episodes": 2, "episode_patience": 2, "dev_rows": "paper"}
    run(prepared, folder, phases=phases_of("ksm", prepared, **hyper), tracker=tracker)
    points = [(step, name) for step, metrics in tracker.got for name in metrics]
    assert len(points) == len(set(points))
    rewarded = [place for place, (_, metrics) in enumerate(tracker.got) if "reward" in metrics]
    assert [tracker.got[place][0] for place in rewarded] == [4, 8, 12, 16, 20, 24]
    assert all("action/label" in tracker.got[place][1] for place in rewarded)
    assert [step for step, metrics in tracker.got if "epoch/episode/score" in metrics] == [12, 24]


def test_epoch_means_weigh_examples(prepared: Prepared, folder: Path) -> None:
    """Means over the rows, which are as many in each step here."""
    result = run(prepared, folder, phases=watched(), epochs=1)
    mean = sum(line["loss/bridge"] for line in steps(folder)) / 6
    assert result.record["history"][0]["parts"]["bridge"] == pytest.approx(mean, rel=1e-9)
    assert result.record["history"][0]["diagnostics"] == {"level": 0.0, "constant": 3.0, "told": 2.0}


def test_points_of_the_curve_hold_what_the_steps_between_told(prepared: Prepared, folder: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over the steps since the last point; what only some steps tell is the mean over these."""
    monkeypatch.setattr(trainer, "CURVE_POINTS", 4)
    curve = run(prepared, folder, "rail_kd_l", epochs=1).record["curve"]
    assert [point["step"] for point in curve] == [2, 4, 6]
    logged = [line["collapse"] for line in steps(folder)]
    assert [point["diagnostics"]["collapse"] for point in curve] == pytest.approx(
        [sum(logged[at:at + 2]) / 2 for at in (0, 2, 4)], rel=1e-9)
    curve = run(prepared, folder / "told", phases=watched(), epochs=1).record["curve"]
    assert [point["diagnostics"] for point in curve] == 3 * [{"level": 0.0, "constant": 3.0, "told": 2.0}]
    assert ["told" in line for line in steps(folder / "told")] == [False, True] * 3


def test_a_failing_tracker_costs_nothing(prepared: Prepared, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    run(prepared, folder / "a", tracker=broken)
    run(prepared, folder / "b")
    assert broken.calls == len(lines(folder / "a")) > 10
    assert lines(folder / "a") == lines(folder / "b")
    assert caplog.text.count("the tracker failed (no route to host)") == 1


def test_transformers_reports_to_nobody(prepared: Prepared, folder: Path) -> None:
    """Its own callbacks would log whatever is installed, MLflow among them, beside us (C44)."""
    distiller = Distiller(tiny_student(prepared), Watched(), Precision("fp32", "cpu"))
    assert trainer._arguments(settings(), distiller, 1, folder).report_to == []


def test_resume_drops_what_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "journal.jsonl"
    journal = Journal(path)
    journal.resume(0)
    for step in (1, 2, 3, 4):
        journal.write(step, {"loss": 1 / step})
    with path.open("a") as file:
        file.write('{"step": 5, "lo')  # killed in mid-line
    journal.resume(2)
    journal.write(3, {"loss": 7.0})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 7.0}]
    journal.resume(0)
    assert path.read_text() == ""


def test_nothing_is_kept_of_a_step(prepared: Prepared, folder: Path) -> None:
    """No tensor of a step lives on, neither within an epoch nor over its end (A47)."""
    counts: list[int] = []

    class Counting(Kept):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            if step in (2, 5, 11) and "gradient_norm" in metrics:
                gc.collect()
                counts.append(sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()))

    run(prepared, folder, "rail_kd_l", tracker=Counting(), keep="last")
    assert len(counts) == 3
    assert max(counts) == counts[0]


class Noted(torch.autograd.Function):
    """Passes values on and notes its context, which lives as long as the graph of the step."""

    @staticmethod
    def forward(context: Any, values: Tensor, contexts: list[weakref.ref[Any]]) -> Tensor:
        contexts.append(weakref.ref(context))
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def test_no_graph_outlives_its_micro_batch(prepared: Prepared, folder: Path) -> None:
    """A loss that is kept, or added up, with its graph keeps all activations (A47)."""
    contexts: list[weakref.ref[Any]] = []

    def note(now: int, part: Tensor) -> Tensor:
        assert not [context for context in contexts if context() is not None]
        return Noted.apply(part, contexts)

    run(prepared, folder, phases=watched(interfere=note), epochs=1, accumulation=2)
    assert len(contexts) == 12


def test_an_alarm_rings_once(prepared: Prepared, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(prepared, folder / "loud", phases=watched(level=0.7), epochs=3)
    assert result.record["warnings"] == ["the level is high"]
    assert capsys.readouterr().err.count("warning: level is 0.7: the level is high") == 1
    assert run(prepared, folder / "quiet", phases=watched(level=0.4), epochs=1).record["warnings"] == []


def test_a_line_per_epoch_where_there_is_no_terminal(prepared: Prepared, folder: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    run(prepared, folder, phases=watched(), epochs=3)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert all(line.startswith(f"toy toy: epoch {n}/3  loss ") for n, line in enumerate(said, 1))
    assert all(word in said[0] for word in ("label", "bridge", "accuracy"))


@pytest.mark.parametrize("degenerate", [False, True])
def test_a_student_that_answers_every_row_alike_is_marked(degenerate: bool, capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"epoch": 1.0, "loss": 0.7, "parts": {"label": 0.7}, "skipped_steps": 0,
             "development": {"accuracy": 0.5, "score": 0.5, "n": 8, "degenerate": degenerate}}
    with Display("rte ckd seed 1") as shown:
        shown.epoch(entry, 3.0, 1.0, best=True)
    assert ("accuracy 0.5000 (degenerate) *" in capsys.readouterr().err) is degenerate


def test_a_bar_on_a_terminal() -> None:
    console = Console(force_terminal=True, width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with Display("rte rail_kd_l seed 1", console) as shown:
        shown.begin("distill", 10, 100)
        shown.step(20, 0.2, 1.0, 0.4321)
        shown._bar.refresh()
        assert shown._bar.tasks[0].completed == 20
        assert "loss 0.4321" in shown._bar.tasks[0].fields["values"]
        assert "resumes after step 10 of 100" in console.export_text(clear=False)


def test_a_line_now_and_then_in_a_long_epoch(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", 0.0)
    with Display("rte rail_kd_l seed 1") as shown:
        shown.begin("distill", 10, 100)
        shown.step(55, 0.55, 1.0, 0.4321)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "rte rail_kd_l seed 1 distill: resumes after step 10 of 100"
    assert second.startswith("rte rail_kd_l seed 1 distill: step 55/100  epoch 0.55/1  loss 0.4321")
    assert second.endswith(" s left")
