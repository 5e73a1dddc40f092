"""An interrupted training ends as an undisturbed one: to the byte, in weights and in record (lessons A80, C42, D2)."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress
from kdcore.training import checkpoint
from tests.training.doubles import Stop, Watched, stop_at, watched
from tests.training.problem import lines, phases_of, run, same_weights, steps


class Crashing(Objective):
    """Another objective that crashes at a step; its state is that of the inner one."""

    def __init__(self, inner: Objective, step: int) -> None:
        super().__init__()
        self.inner, self.step, self.needs = inner, step, inner.needs

    def needs_at(self, progress: Progress) -> Needs:
        return self.inner.needs_at(progress)

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        if progress.step == self.step:
            raise Stop
        return self.inner(student, teacher, batch, progress)


def _phases(prepared: Prepared, step: int = -1, **hyper: str) -> tuple[Phase, ...]:
    (phase,) = phases_of("rail_kd_l", prepared, **hyper)
    return (Phase(phase.name, Crashing(phase.objective, step)),)


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize(("step", "resample"), [  # early, at the start of an epoch, in the middle of one, near the end
    (1, "epoch"), (8, "epoch"), (6, "step"), (16, "step")])
def test_resumed_equals_uninterrupted(prepared: Prepared, tmp_path: Path, step: int, resample: str) -> None:
    straight = run(prepared, tmp_path / "a", phases=_phases(prepared, resample=resample), epochs=3)
    with pytest.raises(Stop):
        run(prepared, tmp_path / "b", phases=_phases(prepared, step, resample=resample), epochs=3)
    assert checkpoint.step_of(checkpoint.latest(tmp_path / "b")) == step
    resumed = run(prepared, tmp_path / "b", phases=_phases(prepared, resample=resample), epochs=3)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    kept = [{k: v for k, v in line.items() if k != "step"} for line in lines(tmp_path / "b")]
    assert kept == [{k: v for k, v in line.items() if k != "step"} for line in lines(tmp_path / "a")]


@pytest.mark.usefixtures("saves_always")
def test_accumulation_and_part_of_an_epoch(prepared: Prepared, tmp_path: Path) -> None:
    options = {"accumulation": 4, "epochs": 1.5}
    straight = run(prepared, tmp_path / "a", phases=watched(), **options)
    for step in (2, 7):
        with pytest.raises(Stop):
            run(prepared, tmp_path / "b", phases=watched(interfere=stop_at(step)), **options)
    resumed = run(prepared, tmp_path / "b", phases=watched(), **options)
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record
    assert [entry["epoch"] for entry in resumed.record["history"]] == [1.0, 1.5]


@pytest.mark.usefixtures("saves_always")
def test_a_finished_training_is_not_trained_again(prepared: Prepared, folder: Path) -> None:
    first = run(prepared, folder, phases=watched())
    assert checkpoint.latest(folder) is not None
    phases = watched()
    again = run(prepared, folder, phases=phases)
    assert not phases[0].objective.seen
    assert same_weights(first.student, again.student)
    assert first.record == again.record


@pytest.mark.usefixtures("saves_always")
def test_progress_and_draws_continue(prepared: Prepared, folder: Path) -> None:
    """The epoch is counted by whole steps: a fraction, rounded, drew other layers (D2)."""
    with pytest.raises(Stop):
        run(prepared, folder, phases=watched(interfere=stop_at(9)))
    phases = watched()
    run(prepared, folder, phases=phases)
    objective = phases[0].objective
    assert isinstance(objective, Watched)
    assert [p.step for p in objective.seen] == [9, 10, 11]
    assert {p.epoch for p in objective.seen} == {1}
    assert [p.step for p in objective.stepped] == [9, 10, 11]
    assert objective.begun == 0  # `before_steps` belongs to the start of the phase
    assert objective.epochs == []  # and `before_epoch` to that of the epoch


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("step", [4, 7])
def test_resume_in_any_phase(prepared: Prepared, tmp_path: Path, step: int) -> None:
    """Two phases, the second from the first one's student, with an objective that serves in both."""
    def phases(interfere: Callable[[int, Tensor], Tensor]) -> tuple[Phase, ...]:
        torch.manual_seed(7)
        shared, other = Watched(), Watched(interfere)
        return (Phase("one", shared, epochs=1, keep="last"), Phase("two", other, epochs=1.5, learning_rate=5e-4),
                Phase("three", shared, epochs=1))

    straight = run(prepared, tmp_path / "a", phases=phases(lambda now, part: part))
    with pytest.raises(Stop):
        run(prepared, tmp_path / "b", phases=phases(stop_at(step)))
    resumed = run(prepared, tmp_path / "b", phases=phases(lambda now, part: part))
    assert same_weights(straight.student, resumed.student)
    assert straight.record == resumed.record


def test_state_of_objectives_survives(prepared: Prepared, folder: Path, saves_always: None) -> None:
    """Projections are in the checkpoint (A10, A11, B28)."""
    phases = watched(interfere=stop_at(9))
    with pytest.raises(Stop):
        run(prepared, folder, phases=phases)
    state = torch.load(checkpoint.latest(folder) / "modules.pt", weights_only=True)
    assert torch.equal(state["objectives.0.bridge.weight"], phases[0].objective.bridge.weight)
    assert not any("teacher" in name for name in state)


def test_a_killed_write_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    with checkpoint.writing(tmp_path, 10) as unfinished:
        (unfinished / "x").write_text("ten")
    with contextlib.suppress(Stop), checkpoint.writing(tmp_path, 20) as unfinished:
        (unfinished / "x").write_text("twen")
        raise Stop
    assert checkpoint.latest(tmp_path) == tmp_path / "checkpoint-10"
    with checkpoint.writing(tmp_path, 30) as unfinished:
        assert not list(unfinished.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-30"]


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize("harm", ["cut", "missing", "json"])
def test_a_damaged_checkpoint_is_named(prepared: Prepared, folder: Path, harm: str) -> None:
    with pytest.raises(Stop):
        run(prepared, folder, phases=watched(interfere=stop_at(3)))
    found = checkpoint.latest(folder)
    match harm:
        case "cut":
            (found / "modules.pt").write_bytes((found / "modules.pt").read_bytes()[:1000])
        case "missing":
            (found / "modules.pt").unlink()
        case "json":
            (found / "record.json").write_text("{")
    with pytest.raises(UserError, match=r"checkpoint .*checkpoint-3 is damaged .*; delete it"):
        run(prepared, folder, phases=watched())
    shutil.rmtree(found)
    run(prepared, folder, phases=watched(), epochs=1)


def test_saving_takes_a_bounded_share_of_the_time(prepared: Prepared, folder: Path) -> None:
    """Trainings shorter than the least time between two checkpoints write none."""
    run(prepared, folder, phases=watched())
    assert checkpoint.latest(folder) is None
    assert len(steps(folder)) == 12
