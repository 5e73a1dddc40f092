"""KSM: totals, episodes and their rewards, the best selector, what each phase learns, refusals."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore import methods
from kdcore.errors import UserError
from kdcore.knowledge_types import TYPES
from kdcore.methods import ksm
from kdcore.methods.ksm import Episodes, Use
from kdcore.objective import Loss, Objective, Phase, Progress, ReadySelector, Setting, Standing
from tests.methods.toys import CLASSIFICATION, STEPS_PER_EPOCH, batch, progress, toys

SOME = torch.tensor([3, 0, 9, 14])


def phases_of(setting: Setting = CLASSIFICATION, **settings: Any) -> tuple[Phase, ...]:
    phases = methods.load("ksm").phases(methods.configure("ksm", settings), setting)
    for phase in phases:
        phase.objective.double()
    return phases


def parts_of(**settings: Any) -> tuple[Episodes, Use]:
    """The objectives of the episodes and of the last phase."""
    first, *_, last = phases_of(**settings)
    assert isinstance(first.objective, Episodes)
    assert isinstance(last.objective, Use)
    return first.objective, last.objective


def loss_of(objective: Objective, ids: Tensor = SOME, step: int = 0) -> Loss:
    needs, (student, teacher) = objective.needs, toys(CLASSIFICATION)
    return objective(student.features(ids, needs.student), teacher.features(ids, needs.teacher),
                     batch(CLASSIFICATION, ids), progress(step))


class Examiner:
    """Gives out standings and counts."""

    def __init__(self, losses: Iterator[float], scores: Iterator[float]) -> None:
        self.losses, self.scores = losses, scores
        self.given: list[Standing] = []

    def __call__(self) -> Standing:
        score = next(self.scores)
        self.given.append(Standing(next(self.losses), score, {"accuracy": score, "f1": score / 2}))
        return self.given[-1]


def examiner(losses: Callable[[int], float] = lambda n: 1 / (1 + n),
             scores: Callable[[int], float] = lambda n: n / 100) -> Examiner:
    return Examiner(map(losses, range(1000)), map(scores, range(1000)))


def play(objective: Objective, steps: int, examine: Examiner) -> list[dict[str, float]]:
    """An episode of a student that does not learn: what is told after each step; after the last also of the whole."""
    objective.before_steps(examine)
    told = []
    for step in range(steps):
        ids = torch.arange(4) + 4 * (step % STEPS_PER_EPOCH)
        loss_of(objective, ids[:3] if step % STEPS_PER_EPOCH == 3 else ids, step)
        told.append(dict(objective.after_step(Progress(step // STEPS_PER_EPOCH, step, steps), examine)))
    told[-1] |= objective.after_steps(examine)
    return told


# One step


@pytest.mark.parametrize("which", [0, 1], ids=["episodes", "use"])
def test_soft_actions_weigh(which: int) -> None:
    objective = parts_of(knowledge=dict(zip(TYPES, (1, 2, 3, 4), strict=True)))[which]
    loss = loss_of(objective)
    assert tuple(loss.parts) == TYPES
    actions = [loss.diagnostics[f"action/{name}"] for name in TYPES]
    expected = sum(weight * action * loss.parts[name]
                   for weight, action, name in zip((1, 2, 3, 4), actions, TYPES, strict=True))
    torch.testing.assert_close(loss.total, expected)
    assert all(0 < action < 1 for action in actions)
    assert not any(weight.requires_grad for weight in loss.weights.values())


@pytest.mark.parametrize("which", [0, 1], ids=["episodes", "use"])
def test_hard_actions_choose(which: int) -> None:
    soft = loss_of(parts_of()[which]).diagnostics
    ranked = sorted(TYPES, key=lambda name: soft[f"action/{name}"])
    threshold = float(soft[f"action/{ranked[1]}"] + soft[f"action/{ranked[2]}"]) / 2
    loss = loss_of(parts_of(actions="hard", threshold=threshold)[which])
    torch.testing.assert_close(loss.total, loss.parts[ranked[2]] + loss.parts[ranked[3]])
    assert [float(loss.diagnostics[f"action/{name}"]) for name in ranked] == [0, 0, 1, 1]


def test_weights_of_nearly_nothing_ring_an_alarm() -> None:
    objective = parts_of()[1]
    (alarm,) = objective.alarms
    assert not alarm.rings(float(loss_of(objective).diagnostics["largest_action"]))
    with torch.no_grad():
        objective.selector.actor.layers[-1].bias.fill_(-8)
    assert alarm.rings(float(loss_of(objective).diagnostics["largest_action"]))


def test_no_type_at_all_is_a_gradient_of_zero() -> None:
    """Which the trainer takes as a step that is not to be taken."""
    objective, _ = parts_of(actions="hard", threshold=0.99)
    student, teacher = toys(CLASSIFICATION)
    total = objective(student.features(SOME, objective.needs.student), teacher.features(SOME, objective.needs.teacher),
                      batch(CLASSIFICATION, SOME), progress(0)).total
    assert total.tolist() == [0, 0, 0, 0]
    total.sum().backward()
    assert not student.states.grad.any()
    assert not any(parameter.grad.any() for parameter in objective.main_parameters())


def test_a_subset_has_a_smaller_action() -> None:
    objective, use = parts_of(knowledge={"label": 1, "response": 1})
    assert [layer.weight.shape[0] for layer in objective.learner.selector.actor.layers][-1] == 2
    assert tuple(loss_of(use).parts) == ("response", "label")
    assert objective.needs.student == {key for key in objective.needs.student if key.kind == "logits" or key.layer == 3}


def test_a_short_batch_has_an_action() -> None:
    objective, _ = parts_of()
    assert loss_of(objective, SOME[:1]).total.isfinite().all()
    assert not objective.seen(*(model.features(SOME[:1], needs) for model, needs in zip(
        toys(CLASSIFICATION), (objective.needs.student, objective.needs.teacher), strict=True))).present[0, 1:].any()


# Episodes


@pytest.mark.parametrize(("steps", "k", "passes"), [(8, 3, 4), (9, 3, 4), (7, 3, 4), (5, 1, 6), (2, 64, 2)])
def test_examinations_of_an_episode(steps: int, k: int, passes: int) -> None:
    """ceil(N / k) + 1; the rewards add up to the whole fall of the loss."""
    objective, _ = parts_of(reward_steps=k)
    examine = examiner()
    told = play(objective, steps, examine)
    assert len(examine.given) == passes == -(-steps // k) + 1
    assert told[-1]["episode/reward"] == pytest.approx(examine.given[0].loss - examine.given[-1].loss)
    assert told[-1]["episode/score"] == told[-1]["episode/accuracy"] == examine.given[-1].score
    segments = list(pairwise(examine.given))
    assert [step["reward"] for step in told if step] == pytest.approx([a.loss - b.loss for a, b in segments])
    assert [step for step, news in enumerate(told) if news] == [*range(k - 1, steps - 1, k), steps - 1]
    for step, (before, after) in zip(filter(None, told), segments, strict=True):
        assert step["gain/loss"] == step["reward"]
        for name in ("accuracy", "f1"):
            assert step[f"gain/{name}"] == pytest.approx(after.metrics[name] - before.metrics[name])


def test_rewards_by_score_and_all_of_the_split() -> None:
    objective, _ = parts_of(reward_steps=2, reward="score", dev_rows="paper")
    examine = examiner(scores=lambda n: n * n / 100)
    told = play(objective, 6, examine)
    assert [told[step]["reward"] for step in (1, 3, 5)] == pytest.approx([0.01, 0.03, 0.05])
    assert all(step["reward"] == step["gain/score"] != step["gain/loss"] for step in told if step)


def test_the_reward_of_an_episode_whose_last_step_was_not_taken() -> None:
    """Such a step is not told of: its segment is rewarded at the end."""
    objective, _ = parts_of(reward_steps=3)
    examine = examiner()
    objective.before_steps(examine)
    for step in range(4):
        loss_of(objective, SOME, step)
        objective.after_step(Progress(0, step, 5), examine)
    assert len(examine.given) == 2
    told = objective.after_steps(examine)
    assert len(examine.given) == 3
    assert told["episode/reward"] == pytest.approx(examine.given[0].loss - examine.given[2].loss)


@pytest.mark.parametrize(("scores", "patience", "best", "played"), [
    ((0.5, 0.7, 0.6, 0.9), 1, 1, 3), ((0.5, 0.4, 0.6, 0.6), 2, 2, 4), ((0.5, 0.5), 1, 0, 2)])
def test_the_best_episode_is_kept(scores: tuple[float, ...], patience: int, best: int, played: int) -> None:
    objective, use = parts_of(episode_patience=patience)
    selectors = []
    for score in scores:
        if objective.done:
            break
        play(objective, 2, examiner(scores=lambda n, score=score: score))
        selectors.append({name: value.clone() for name, value in objective.learner.selector.state_dict().items()})
    assert len(selectors) == played
    assert all(torch.equal(value, selectors[best][name]) for name, value in use.selector.state_dict().items())
    if patience == 1:
        assert objective.done


def test_a_last_segment_that_is_full_is_learned_from_once() -> None:
    objective, _ = parts_of(reward_steps=2)
    play(objective, 4, examiner())
    state = objective.learner.critic_optimiser.adam.state_dict()["state"]
    assert {float(entry["step"]) for entry in state.values()} == {2}


def test_actor_and_critic_learn_and_the_used_selector_does_not() -> None:
    objective, use = parts_of(reward_steps=2)
    before = {name: value.clone() for name, value in objective.learner.selector.named_parameters()}
    play(objective, 4, examiner())
    assert all(not torch.equal(value, before[name])
               for name, value in objective.learner.selector.named_parameters())
    assert {id(parameter) for parameter in objective.main_parameters()}.isdisjoint(
        id(parameter) for parameter in objective.learner.parameters())
    assert {name.split(".")[0] for name, _ in use.named_parameters()} == {"knowledge"}
    kept = {name: value.clone() for name, value in use.selector.state_dict().items()}
    play(use, 4, examiner())
    assert all(torch.equal(value, kept[name]) for name, value in use.selector.state_dict().items())


def test_each_episode_starts_with_the_first_maps() -> None:
    objective, _ = parts_of()
    first = [parameter.clone() for parameter in objective.main_parameters()]
    assert len(first) == 2
    for parameter in objective.main_parameters():
        parameter.data += 1
    objective.before_steps(examiner())
    assert all(torch.equal(one, other) for one, other in zip(objective.main_parameters(), first, strict=True))


def test_rows_are_held_back_from_episodes_alone() -> None:
    assert [objective.held_back for objective in parts_of(dev_rows=10)] == [10, 0]
    assert [objective.held_back for objective in parts_of(dev_rows="paper")] == [0, 0]


def test_phases() -> None:
    phases = phases_of(episodes=3, episode_epochs=0.5)
    assert [phase.name for phase in phases] == ["episode-1", "episode-2", "episode-3", "distill"]
    assert all(phase.fresh_student for phase in phases)
    assert [phase.epochs for phase in phases] == [0.5, 0.5, 0.5, None]
    assert [phase.keep for phase in phases] == ["last", "last", "last", None]
    assert len({id(phase.objective) for phase in phases}) == 2


@pytest.mark.parametrize("source", ["study", {"source": "../other/selector", "revision": "0" * 16}], ids=str)
def test_a_ready_selector_leaves_the_last_phase_alone(source: str | dict[str, str]) -> None:
    learned = ksm.learning(ksm.Config(), CLASSIFICATION)
    ready = ReadySelector("the selector", learned.made_for, learned.best.state_dict())
    config = methods.configure("ksm", {"selector": source, "knowledge": dict.fromkeys(TYPES, 2.0)})
    (phase,) = ksm.phases(config, replace(CLASSIFICATION, selector=ready))
    assert phase == Phase("distill", phase.objective)
    use = phase.objective.double()
    before = {name: value.clone() for name, value in use.selector.state_dict().items()}
    play(use, 4, examiner())
    assert all(torch.equal(value, learned.best.double().state_dict()[name]) for name, value in before.items())
    assert all(torch.equal(value, before[name]) for name, value in use.selector.state_dict().items())
    (sizes,) = ksm.phases(config, CLASSIFICATION)
    assert sizes.objective.needs == use.needs
    with pytest.raises(AssertionError, match="the setting brought no selector"):
        loss_of(sizes.objective.double())


@pytest.mark.parametrize("settings", [
    {"reward_steps": 0}, {"threshold": 1}, {"threshold": 0}, {"gamma": 1.1}, {"noise": -1}, {"episodes": 0},
    {"alpha": 0}, {"knowledge": {}}, {"actor_learning_rate": 0}, {"dev_rows": 0}, {"dev_rows": "all"},
    {"episode_patience": 0},
], ids=str)
def test_values_out_of_range(settings: dict[str, Any]) -> None:
    (key,) = settings
    with pytest.raises(UserError, match=f"methods.ksm: {key}") as caught:
        methods.configure("ksm", settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"threshold": 0.3}, "threshold concerns actions: hard"), ({"alpha": 0.2}, "alpha concerns actions: hard"),
    ({"actions": "hard", "exploration": False, "alpha": 0.2}, "exploration: false switches off"),
    ({"selector": "study", "episodes": 3}, "episodes is for a selector that learns, but `selector` names one"),
    ({"selector": "study", "dev_rows": 64}, "dev_rows is for a selector that learns"),
    ({"knowledge": {"label": 1}, "temperature": 2}, "temperature concerns response"),
    ({"knowledge": {"response": 1}, "mapping": "last"}, "mapping concerns feature and relation"),
], ids=str)
def test_settings_that_would_do_nothing(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        methods.configure("ksm", settings)
    assert "\n" not in str(caught.value)
