"""The selector's learning: when and from what it updates, what it remembers, restarts, a bandit."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kdcore.selector import Seen, Segment, Selector, actor_loss, estimated_rewards, padded, segment_loss, stepwise_loss
from kdcore.selector_training import LearningConfig, SelectorLearner, as_bytes, from_bytes

BATCH = 3


def learner_of(seed: int = 0, hidden: int = 16, **settings: Any) -> SelectorLearner:
    torch.manual_seed(seed)
    selector = Selector(6, 5, BATCH, 4, feature_hidden=16, hidden=hidden)
    return SelectorLearner(selector, LearningConfig(**{"reward_steps": 2} | settings), 6, 5, 4, seed)


def seen_at(step: int, examples: int = BATCH) -> Seen:
    generator = torch.Generator().manual_seed(step)
    return padded(torch.randn(examples, 6, generator=generator), torch.randn(examples, 5, generator=generator), BATCH)


def steps(learner: SelectorLearner, count: int, first: int = 0) -> list[Tensor]:
    """Steps of segments whose reward is 0.1 times the number of the last step; returns their actions."""
    actions = []
    for step in range(first, first + count):
        actions.append(learner.choose(seen_at(step), str(step))[0])
        if learner.keep():
            learner.earn(0.1 * step)
    return actions


def weights(learner: SelectorLearner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.selector.state_dict().items()}


def changed(before: dict[str, Tensor], learner: SelectorLearner) -> set[str]:
    return {name.split(".")[0] for name, value in weights(learner).items() if not torch.equal(value, before[name])}


# When it learns


def test_the_update_waits_for_the_next_step_and_comes_before_its_action() -> None:
    learner = learner_of()
    before = weights(learner)
    steps(learner, 2)
    assert not changed(before, learner)
    old = learner.selector.choose(seen_at(2))[0]
    (action,) = steps(learner, 1, first=2)
    assert changed(before, learner) == {"student_features", "teacher_features", "actor", "critic"}
    assert not torch.equal(action, old)
    assert torch.equal(action, learner.selector.choose(seen_at(2))[0])


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("settings", [{}, {"exploration": False}, {"gradient": "full"}], ids=str)
def test_the_update_is_one_step_of_adam_on_each_loss(ends: bool, settings: dict[str, Any]) -> None:
    """By hand on a copy: critic and N_T, then actor and N_S by the new critic."""
    learner = learner_of(gamma=0.9, **settings)
    actions = steps(learner, 6)
    twin = copy.deepcopy(learner.selector)
    memory = [torch.cat(parts) for parts in zip(*(seen_at(step) for step in (4, 5)), strict=True)]
    extended = [torch.cat(parts) for parts in zip(*(seen_at(step) for step in ((4, 5) if ends else (4, 5, 6))),
                                                  strict=True)]
    cosines = [-torch.cosine_similarity(torch.stack(actions[2:4]), actions[step], dim=1).mean() for step in (4, 5)]
    torch.testing.assert_close(learner.exploration, torch.stack(cosines))
    segment = Segment(Seen(*extended), torch.stack(actions[4:]), torch.stack(cosines), 0.5)
    estimates = estimated_rewards(twin, segment, 0.9, settings.get("gradient") == "full")
    loss = segment_loss(estimates, 0.5)
    if settings.get("exploration", True):
        loss = loss + stepwise_loss(estimates, segment.exploration)
    for optimiser, parts in ((learner.critic_optimiser, (twin.critic, twin.teacher_features)),
                             (learner.actor_optimiser, (twin.actor, twin.student_features))):
        own = [parameter for part in parts for parameter in part.parameters()]
        adam = torch.optim.Adam(own, lr=2e-4)
        adam.load_state_dict(copy.deepcopy(optimiser.adam.state_dict()))
        adam.zero_grad()
        loss.backward()
        adam.step()
        loss = actor_loss(twin, Seen(*memory))
    if ends:
        learner.end()
    else:
        learner.choose(seen_at(6), "6")
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(weights(learner)[name], value)


def test_an_update_leaves_no_gradients_and_no_other_parameter_hears_of_it() -> None:
    learner = learner_of()
    steps(learner, 3)
    assert all(parameter.grad is None for parameter in learner.parameters())


def test_actions_are_constants() -> None:
    learner = learner_of()
    student = torch.randn(3, 6, requires_grad=True)
    action, exploration = learner.choose(padded(student, torch.randn(3, 5), BATCH), "0")
    assert not action.requires_grad
    assert not exploration.requires_grad


def test_a_step_that_did_not_count_is_forgotten() -> None:
    """Its batch is not remembered; one that is not finite does not end a segment's wait."""
    learner, undisturbed = learner_of(), learner_of()
    steps(learner, 2)
    nothing = padded(torch.full((3, 6), math.nan), torch.randn(3, 5), BATCH)
    assert learner.choose(nothing, "bad")[0].isnan().all()
    assert learner.reward is not None
    learner.choose(seen_at(99), "also bad, but not in what is seen")
    assert learner.reward is None
    steps(undisturbed, 2)
    undisturbed.choose(seen_at(99), "2")
    for one, other in zip(steps(learner, 4, first=2), steps(undisturbed, 4, first=2), strict=True):
        assert torch.equal(one, other)


def test_another_student_begins_with_an_empty_memory() -> None:
    learner = learner_of()
    steps(learner, 5)
    before = weights(learner)
    learner.begin()
    assert not steps(learner, 1)[0].isnan().any()
    assert not changed(before, learner)
    assert learner.exploration[0] == 0


# Exploration and noise


def test_exploration_of_hard_actions_counts_patterns() -> None:
    learner = learner_of(actions="hard", threshold=0.01, alpha=0.2)
    steps(learner, 4)
    earned = learner.choose(seen_at(4), "4")[1]
    assert earned.item() == pytest.approx(0.2 / math.sqrt(3))  # all types both times


def test_noise_follows_from_seed_and_moment() -> None:
    one, two = (learner_of(noise=0.3) for _ in range(2))
    torch.manual_seed(99)
    assert torch.equal(one.choose(seen_at(0), "0")[0], two.choose(seen_at(0), "0")[0])
    assert not torch.equal(one.choose(seen_at(0), "1")[0], two.choose(seen_at(0), "0")[0])
    drawn = torch.stack([one.choose(seen_at(0), str(moment))[0] for moment in range(300)])
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    torch.testing.assert_close(drawn.mean(dim=0), one.selector.choose(seen_at(0))[0], rtol=0, atol=0.06)


def test_a_segment_has_one_noise() -> None:
    """Its steps share one reward: of noise in each, little would be left in their sum."""
    learner = learner_of(reward_steps=3, noise=0.01)
    noise = []
    for step in range(6):
        action = learner.choose(seen_at(step), str(step))[0]
        noise.append(action - learner.selector.choose(seen_at(step))[0])
        if learner.keep():
            learner.earn(0.1)
    for first in (0, 3):
        torch.testing.assert_close(noise[first + 1:first + 3], [noise[first]] * 2)
    assert (noise[0] - noise[3]).abs().min() > 1e-4


# Rewards


def test_relative_rewards_are_what_exceeds_the_reward_before() -> None:
    learner = learner_of(relative_rewards=True)
    earned = []
    for reward in (0.5, 0.75, 0.25):
        learner.earn(reward)
        earned.append(learner.reward)
    assert earned == [0.0, 0.25, -0.5]
    learner.begin()
    learner.earn(0.125)
    assert learner.reward == 0.0


# Restarts


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 7])
def test_saved_and_loaded_goes_on_the_same(stop: int) -> None:
    straight = learner_of(noise=0.1, relative_rewards=True)
    expected = steps(straight, 9)
    first = learner_of(noise=0.1, relative_rewards=True)
    steps(first, stop)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = learner_of(seed=5, noise=0.1, relative_rewards=True)
    second.seed = 0
    second.load_state_dict(torch.load(saved, weights_only=True))
    twice = io.BytesIO()  # what was loaded can be saved again before anything was learned
    torch.save(second.state_dict(), twice)
    twice.seek(0)
    second.load_state_dict(torch.load(twice, weights_only=True))
    for one, other in zip(steps(second, 9 - stop, first=stop), expected[stop:], strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(straight).items())


def test_a_state_that_was_written_on_another_device_is_read_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a GPU goes on without one; where parameters are elsewhere, Adam takes the state there."""
    first, second = learner_of(), learner_of()
    steps(first, 5)
    second.load_state_dict(first.state_dict())
    read, places = torch.load, []

    def load(file: io.BytesIO, map_location: Any = None, **options: Any) -> Any:
        places.append(map_location)
        return read(file, map_location, **options)

    monkeypatch.setattr(torch, "load", load)
    steps(second, 4, first=5)
    assert set(places) == {"cpu"}


def test_plain_values_survive_exactly() -> None:
    content = {"a": 0.1 + 0.2, "b": None, "c": [1, -1e-300]}
    assert from_bytes(as_bytes(content)) == content


# A bandit


@pytest.mark.parametrize("seed", [0, 1])
def test_it_learns_to_prefer_the_type_that_helps(seed: int) -> None:
    """The first type helps, the others harm, and nothing lasts; the reward is of two steps together."""
    learner = learner_of(seed, hidden=64, critic_learning_rate=2e-3, actor_learning_rate=5e-4, noise=0.3, gamma=0.0,
                         exploration=False)
    actions = []
    for segment in range(150):
        for step in (0, 1):
            seen = seen_at(1000 * seed + 2 * segment + step)
            actions.append(learner.choose(seen, f"{segment} {step}")[0])
            full = learner.keep()
        assert full
        learner.earn(sum(float(action[0] - action[1:].sum() + 1) for action in actions[-2:]))
    early, late = torch.stack(actions[:20]).mean(dim=0), torch.stack(actions[-20:]).mean(dim=0)
    assert 0.4 < early.mean() < 0.6
    assert late[0] > 0.75
    assert late[1:].max() < 0.4
