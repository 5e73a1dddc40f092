"""Knowledge mix: weights, draws and how often, what a step reads, the baselines as configurations."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kdcore import methods
from kdcore.data.prepared import Prepared
from kdcore.errors import UserError
from kdcore.knowledge_types import TYPES
from kdcore.objective import Loss, Objective, Progress
from tests.methods.toys import CLASSIFICATION, batch, progress, toys
from tests.training.problem import phases_of, run, steps, write_prepared

SOME = torch.tensor([3, 0, 9, 14])


def objective_of(seed: int = 7, **settings: Any) -> Objective:
    (phase,) = methods.load("knowledge_mix").phases(methods.configure("knowledge_mix", settings),
                                                    replace(CLASSIFICATION, seed=seed))
    return phase.objective.double()


def loss_of(objective: Objective, moment: Progress) -> Loss:
    needs, (student, teacher) = objective.needs_at(moment), toys(CLASSIFICATION)
    return objective(student.features(SOME, needs.student), teacher.features(SOME, needs.teacher),
                     batch(CLASSIFICATION, SOME), moment)


def actions(selection: str, moments: int = 2000, **settings: Any) -> list[tuple[float, ...]]:
    objective = objective_of(selection=selection, **settings)
    return [tuple(objective.action(Progress(0, step, moments)).values()) for step in range(moments)]


def test_fixed_weights() -> None:
    loss = loss_of(objective_of(knowledge={"label": 2, "feature": 3}), progress(0))
    torch.testing.assert_close(loss.total, 3 * loss.parts["feature"] + 2 * loss.parts["label"])
    assert not loss.diagnostics


def test_random_soft_is_uniform() -> None:
    drawn = torch.tensor(actions("random_soft"))
    torch.testing.assert_close(drawn.mean(dim=0), torch.full((4,), 0.5), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(dim=0), torch.full((4,), 12**-0.5), rtol=0, atol=0.02)
    assert drawn.min() >= 0
    assert drawn.max() <= 1


@pytest.mark.parametrize("selection", ["random_hard", "random_one"])
def test_random_hard_takes_each_subset_equally_often(selection: str) -> None:
    counts = Counter(actions(selection, 3000))
    assert len(counts) == 15
    assert (0.0, 0.0, 0.0, 0.0) not in counts
    assert all(140 < count < 260 for count in counts.values())  # 200 +- 14
    assert len(Counter(actions("random_hard", 100, knowledge={"response": 1, "label": 1}))) == 3


def test_random_one_takes_all_after_the_first_epoch() -> None:
    objective = objective_of(selection="random_one")
    for epoch in (1, 2):
        assert set(objective.action(Progress(epoch, epoch * 9, 27)).values()) == {1.0}


@pytest.mark.parametrize("selection", ["random_soft", "random_hard"])
def test_draws_follow_from_seed_and_step(selection: str) -> None:
    one, same, other = (objective_of(seed, selection=selection) for seed in (7, 7, 8))
    assert [one.action(progress(step)) for step in range(9)] == [same.action(progress(step)) for step in range(9)]
    assert [one.action(progress(step)) for step in range(9)] != [other.action(progress(step)) for step in range(9)]


@pytest.mark.parametrize("selection", ["random_soft", "random_hard"])
def test_the_total_is_that_of_the_action(selection: str) -> None:
    objective = objective_of(selection=selection, knowledge=dict(zip(TYPES, (1, 2, 3, 4), strict=True)))
    everything = loss_of(objective_of(), progress(0)).parts
    for step in range(6):
        action, loss = objective.action(progress(step)), loss_of(objective, progress(step))
        expected = sum(action[name] * weight * everything[name] for weight, name in enumerate(TYPES, 1))
        torch.testing.assert_close(loss.total, expected)
        assert loss.diagnostics == {f"action/{name}": value for name, value in action.items()}


def test_a_step_reads_only_what_it_takes() -> None:
    objective = objective_of(selection="random_hard")
    for step in range(30):
        taken = {name for name, value in objective.action(progress(step)).items() if value}
        needs, loss = objective.needs_at(progress(step)), loss_of(objective, progress(step))
        assert loss.parts.keys() == taken
        assert bool(needs.teacher) == (taken != {"label"})
        assert needs.teacher <= objective.needs.teacher


def test_a_training_with_it(tmp_path: Path) -> None:
    """Parts come and go; the log has each of them, and how often each type was taken."""
    prepared: Prepared = write_prepared(tmp_path / "data", rows=48)
    result = run(prepared, tmp_path / "work", phases=phases_of("knowledge_mix", prepared, selection="random_hard"),
                 epochs=3)
    assert len(steps(tmp_path / "work")) == 9
    diagnostics = result.record["history"][0]["diagnostics"]
    assert set(diagnostics) == {f"action/{name}" for name in TYPES}
    assert all(value * 3 == pytest.approx(round(value * 3)) for value in diagnostics.values())
    taken = {name for entry in result.record["history"] for name in entry["parts"]}
    assert taken == set(TYPES)


@pytest.mark.parametrize(("settings", "message"), [
    ({"knowledge": {}}, "knowledge"), ({"knowledge": {"relations": 1}}, "relations"),
    ({"knowledge": {"label": -1}}, "label"), ({"selection": "random"}, "selection = 'random'"),
], ids=str)
def test_what_does_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        objective_of(**settings)
    assert "\n" not in str(caught.value)
