"""KSM in a training: an exact resume in any episode, episodes that end, what is logged, what is exported."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore.data.prepared import Prepared
from kdcore.features import Features
from kdcore.knowledge_types import TYPES
from kdcore.methods import ksm
from kdcore.objective import Batch, Examine, Loss, Objective, Phase, Progress, Standing
from kdcore.training import checkpoint, development
from kdcore.training.development import Development
from kdcore.training.run import TrainingResult
from tests.training.doubles import Stop
from tests.training.problem import lines, phases_of, run, same_weights, steps, tiny_student

HYPER: dict[str, Any] = {"reward_steps": 4, "episodes": 2, "dev_rows": 8, "episode_patience": 2}


def crash(objective: Objective, episode_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop in the forward of the so-manieth step, counted over the phases of this objective."""
    forward, count = objective.forward, 0

    def counting(student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        nonlocal count
        if count == episode_step:
            raise Stop
        count += 1
        return forward(student, teacher, batch, progress)

    monkeypatch.setattr(objective, "forward", counting)


def train(prepared: Prepared, folder: Path, phases: tuple[Phase, ...] | None = None) -> TrainingResult:
    return run(prepared, folder, phases=phases or phases_of("ksm", prepared, **HYPER), epochs=1)


@pytest.fixture(scope="module")
def straight(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingResult, Path]:
    """Two episodes and the use of the better one, six steps each, in one go; and the folder."""
    folder = tmp_path_factory.mktemp("straight")
    return train(prepared, folder), folder


@pytest.mark.usefixtures("saves_always")
@pytest.mark.parametrize(("part", "step"), [
    (0, 4),   # in the first episode, at the step that an update waits for
    (0, 9),   # in the second, in the middle of a segment
    (-1, 3),  # while the selector is used
])
def test_resumed_equals_uninterrupted(prepared: Prepared, straight: tuple[TrainingResult, Path], folder: Path,
                                      part: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = phases_of("ksm", prepared, **HYPER)
    crash(phases[part].objective, step, monkeypatch)
    with pytest.raises(Stop):
        train(prepared, folder, phases)
    assert checkpoint.step_of(checkpoint.latest(folder)) == (step if part == 0 else 12 + step)
    resumed, (expected, undisturbed) = train(prepared, folder), straight
    assert same_weights(expected.student, resumed.student)
    assert expected.record == resumed.record
    assert lines(folder) == lines(undisturbed)


def test_what_is_logged_and_what_is_exported(prepared: Prepared, straight: tuple[TrainingResult, Path]) -> None:
    result, folder = straight
    assert result.student.state_dict().keys() == tiny_student(prepared).state_dict().keys()
    assert [entry["phase"] for entry in result.record["history"]] == ["episode-1", "episode-2", "distill"]
    for entry in result.record["history"][:2]:
        assert {"episode/score", "episode/dev_loss", "episode/reward", "reward"} <= entry["diagnostics"].keys()
    actions = {f"action/{name}" for name in TYPES}
    assert all(actions <= line.keys() for line in steps(folder))
    rewarded = [line for line in steps(folder) if "reward" in line]
    assert [line["step"] for line in rewarded] == [4, 6, 10, 12]  # segments of four steps, and what is left of six
    assert all({"gain/loss", "gain/accuracy"} <= line.keys() for line in rewarded)
    assert sum("epoch/episode/score" in line for line in lines(folder)) == 2


def test_episodes_alone_make_the_same_selector(prepared: Prepared, folder: Path) -> None:
    whole = phases_of("ksm", prepared, **HYPER)
    train(prepared, folder / "whole", whole)
    setting = whole[0].objective.setting
    learned = ksm.learning(ksm.Config(**HYPER), setting)
    train(prepared, folder / "alone", learned.phases)
    used, alone = whole[-1].objective.selector.state_dict(), learned.best.state_dict()
    assert used.keys() == alone.keys()
    assert all(torch.equal(used[name].cpu(), alone[name].cpu()) for name in used)


def test_episodes_end_when_the_score_does_not_rise(prepared: Prepared, folder: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Development, "examine", lambda self, student, held_back: Standing(1.0, 0.5, {}))
    result = train(prepared, folder, phases_of("ksm", prepared, **HYPER | {"episodes": 9, "episode_patience": 1}))
    assert [phase["name"] for phase in result.record["phases"]] == ["episode-1", "episode-2", "distill"]


@pytest.mark.parametrize("dev_rows", [8, "paper"])
def test_rows_that_reward_neither_teach_nor_select(prepared: Prepared, folder: Path, dev_rows: int | str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    phases = phases_of("ksm", prepared, **HYPER | {"dev_rows": dev_rows})
    taught: dict[str, set[int]] = {"episode": set(), "distill": set()}
    looked_at: list[tuple[str, tuple[int, ...] | None]] = []
    predict = development.predict

    def watch(objective: Objective, ids: set[int]) -> None:
        forward = objective.forward

        def watched(student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
            ids.update(batch.ids.tolist())
            return forward(student, teacher, batch, progress)
        monkeypatch.setattr(objective, "forward", watched)

    def watched_predict(model, prepared, split, batch_size, which, part):  # type: ignore[no-untyped-def]
        looked_at.append((split, None if part is None else tuple(part.tolist())))
        return predict(model, prepared, split, batch_size, which, part)

    watch(phases[0].objective, taught["episode"])
    watch(phases[-1].objective, taught["distill"])
    monkeypatch.setattr(development, "predict", watched_predict)
    result = train(prepared, folder, phases)
    everything = set(range(90))
    assert taught["distill"] == everything
    *rewarding, selecting = looked_at  # the last phase has one epoch
    assert selecting == ("validation", None)
    assert len(rewarding) == 2 * 3  # ceil(6 steps / 4) + 1 in each episode, which nothing else examines
    if dev_rows == "paper":
        assert set(rewarding) == {selecting}
        assert taught["episode"] == everything
    else:
        [(split, rows)] = set(rewarding)
        assert split == "train"
        assert taught["episode"] == everything - set(rows)
        assert len(rows) == 8
    assert [phase.get("held_back") for phase in result.record["phases"]] == (
        [None] * 3 if dev_rows == "paper" else [8, 8, None])


def test_students_of_all_phases_start_alike(prepared: Prepared, folder: Path) -> None:
    phases = phases_of("ksm", prepared, **HYPER)
    objective = phases[0].objective
    starts, begin = [], objective.before_steps

    def watched(examine: Examine) -> None:
        starts.append(examine())
        begin(examine)

    objective.before_steps = watched  # type: ignore[method-assign]
    train(prepared, folder, phases)
    assert len(starts) == 2
    assert starts[0] == starts[1]


@pytest.mark.parametrize("hyper", [{"actions": "hard", "threshold": 0.5, "noise": 0.4}, {"reward_steps": 1},
                                   {"reward": "score", "exploration": False, "gradient": "full"}], ids=str)
def test_variants(prepared: Prepared, folder: Path, hyper: dict[str, Any]) -> None:
    result = train(prepared, folder, phases_of("ksm", prepared, **HYPER | {"episodes": 1} | hyper))
    assert result.record["skipped_steps"] == 0
    assert all(torch.isfinite(value).all() for value in result.student.state_dict().values())


def test_scores(scores: Prepared, folder: Path) -> None:
    result = train(scores, folder, phases_of("ksm", scores, **HYPER | {"episodes": 1}))
    assert result.record["history"][-1]["development"]["score"] is not None


@pytest.mark.usefixtures("saves_always")
def test_nothing_of_the_selector_is_optimised_with_the_student(prepared: Prepared, folder: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    phases = phases_of("ksm", prepared, **HYPER)
    crash(phases[0].objective, 3, monkeypatch)
    with pytest.raises(Stop):
        train(prepared, folder, phases)
    saved = checkpoint.latest(folder)
    sizes = torch.load(saved / "optimizer.pt", weights_only=True)["param_groups"]
    learned = sum(p.requires_grad for p in tiny_student(prepared).parameters()) + 2  # and two maps between widths
    assert sum(len(group["params"]) for group in sizes) == learned
    state = torch.load(saved / "modules.pt", weights_only=True)
    saved_of_the_selector = {
        "learner.selector.actor.layers.0.weight", "learner.student", "learner.critic_optimiser._extra_state",
        "best.critic.layers.0.bias"}
    assert {f"objectives.0.{name}" for name in saved_of_the_selector} <= state.keys()
