"""Objectives of other methods as candidates in a training: an exact resume, layers drawn as alone, what is logged.

Two ranks are in `test_distributed`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.data.prepared import Prepared
from kdcore.features import Features
from kdcore.objective import Batch, Loss, Objective, Phase, Progress
from kdcore.training import checkpoint
from kdcore.training.run import TrainingResult
from tests.training.doubles import Stop
from tests.training.problem import lines, phases_of, run, same_weights, steps, tiny_student

KNOWLEDGE: dict[str, Any] = {"label": 1, "rail": {"method": "rail_kd_l", "width": 8, "resample": "step"},
                             "codir": {"negatives": 10, "gamma": 1.0}}
HYPER: dict[str, dict[str, Any]] = {
    "knowledge_mix": {"knowledge": KNOWLEDGE, "selection": "random_hard"},
    "ksm": {"knowledge": KNOWLEDGE, "reward_steps": 4, "episodes": 2, "dev_rows": 10, "episode_patience": 2}}


def crash(objective: Objective, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop in the forward of the so-manieth step, counted over the phases of this objective."""
    forward, count = objective.forward, 0

    def counting(student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        nonlocal count
        if count == step:
            raise Stop
        count += 1
        return forward(student, teacher, batch, progress)

    monkeypatch.setattr(objective, "forward", counting)


def train(method: str, prepared: Prepared, folder: Path, phases: tuple[Phase, ...] | None = None) -> TrainingResult:
    return run(prepared, folder, phases=phases or phases_of(method, prepared, **HYPER[method]), epochs=1)


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize(("method", "step"), [("knowledge_mix", 3), ("ksm", 8)])
def test_resumed_equals_uninterrupted(method: str, step: int, prepared: Prepared, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, the bank and the maps included; of `ksm` in the second episode."""
    undisturbed, crashing, again = (phases_of(method, prepared, **HYPER[method]) for _ in range(3))
    straight = train(method, prepared, tmp_path / "a", undisturbed)
    crash(crashing[0].objective, step, monkeypatch)
    with pytest.raises(Stop):
        train(method, prepared, tmp_path / "b", crashing)
    saved = torch.load(checkpoint.latest(tmp_path / "b") / "modules.pt", weights_only=True)
    assert {"objectives.0.objectives.0.contrast.bank.rows",
            "objectives.0.objectives.1.student_projection.maps.0.weight"} <= saved.keys()
    resumed = train(method, prepared, tmp_path / "b", again)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    for one, other in zip(undisturbed, again, strict=True):
        theirs = other.objective.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in one.objective.state_dict().items())


def test_what_is_drawn_and_logged(prepared: Prepared, tmp_path: Path) -> None:
    """RAIL-KD draws the layers that it draws alone."""
    alone, mixed = tmp_path / "alone", tmp_path / "mixed"
    run(prepared, alone, phases=phases_of("rail_kd_l", prepared, width=8, resample="step"), epochs=1)
    result = run(prepared, mixed, phases=phases_of("knowledge_mix", prepared, knowledge=KNOWLEDGE), epochs=1)
    drawn = [{key: line[key] for key in line if key.startswith("layer/")} for line in steps(alone)]
    assert len({tuple(line.values()) for line in drawn}) > 1
    assert [{key: line[f"rail/{key}"] for key in one} for one, line in zip(drawn, steps(mixed), strict=True)] == drawn
    for line in steps(mixed):
        rail = (line["rail/kd"] + line["rail/rail"]) / 3
        assert line["loss/rail"] == pytest.approx(rail, rel=1e-5)
        assert {"loss/label", "loss/codir", "codir/codir", "rail/collapse"} <= line.keys()
    assert result.student.state_dict().keys() == tiny_student(prepared).state_dict().keys()
