"""How long a training lasts and when it saves, said in steps and minutes."""

from pathlib import Path

import pytest
import torch

from kdcore.config import Training
from kdcore.data.prepared import Prepared
from kdcore.objective import Phase
from kdcore.training import checkpoint, run, trainer
from tests.training.doubles import Stop, Watched, stop_at, watched
from tests.training.problem import run as train
from tests.training.problem import same_weights, settings


def test_steps_replace_epochs(prepared: Prepared, tmp_path: Path) -> None:
    """Eight steps of six an epoch; a phase with epochs of its own keeps to these."""
    phases = (Phase("one", Watched(), epochs=0.5, keep="last"), Phase("two", Watched()))
    result = train(prepared, tmp_path / "a", phases=phases, steps=8)
    assert [(entry["phase"], entry["epoch"], entry["step"]) for entry in result.record["history"]] == [
        ("one", 0.5, 3), ("two", 1.0, 6), ("two", pytest.approx(8 / 6), 8)]
    assert [phase["steps"] for phase in result.record["phases"]] == [None, 8]


def test_a_phase_of_epochs_and_as_many_steps_are_the_same(prepared: Prepared, tmp_path: Path) -> None:
    one, other = (train(prepared, tmp_path / name, "finetune", **{name: much}) for name, much in
                  {"epochs": 1.5, "steps": 9}.items())
    assert same_weights(one.student, other.student)


def test_betas_and_epsilon_reach_the_optimiser(prepared: Prepared, folder: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.optim.Optimizer] = []
    create = trainer.DistillationTrainer.create_optimizer

    def noted(self: trainer.DistillationTrainer, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        made.append(create(self, model))
        return made[-1]

    monkeypatch.setattr(trainer.DistillationTrainer, "create_optimizer", noted)
    train(prepared, folder, phases=watched(), steps=1, betas=(0.9, 0.98), epsilon=1e-6)
    assert (made[0].defaults["betas"], made[0].defaults["eps"]) == ((0.9, 0.98), 1e-6)


def test_checkpoints_by_steps(prepared: Prepared, folder: Path) -> None:
    with pytest.raises(Stop):
        train(prepared, folder, phases=watched(interfere=stop_at(5)), save_steps=2)
    assert checkpoint.step_of(checkpoint.latest(folder)) == 4


@pytest.mark.parametrize(("minutes", "found"), [(0.0, 5), (1.0, None)])
def test_checkpoints_by_minutes(prepared: Prepared, folder: Path, minutes: float, found: int | None,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SAVING_SHARE", 1e9)
    with pytest.raises(Stop):
        train(prepared, folder, phases=watched(interfere=stop_at(5)), save_minutes=minutes)
    latest = checkpoint.latest(folder)
    assert (latest and checkpoint.step_of(latest)) == found


def test_when_it_saves_is_no_part_of_what_it_becomes() -> None:
    assert settings(save_steps=3, save_minutes=1.0, seed=7).deciding() == settings().deciding()
    assert settings(steps=3).deciding() != settings().deciding()
    assert run.effective(Training(steps=3), Phase("x", Watched(), epochs=2.0)).steps is None


def test_tokens_are_counted(prepared: Prepared, folder: Path) -> None:
    measured = train(prepared, folder, "finetune", accumulation=2).measured
    assert measured["tokens"] == 2 * prepared.tokens("train", "student").lengths.sum()
    assert measured["tokens_per_second"] == pytest.approx(
        measured["examples_per_second"] * measured["tokens"] / 180)
