"""The selector: golden values and gradients, identities, actions, rewards, who learns from what."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kdcore import selector as module
from kdcore.selector import (
    Network,
    Seen,
    Segment,
    Selector,
    actor_loss,
    count_reward,
    estimated_rewards,
    hard,
    joined,
    padded,
    segment_loss,
    similarity_reward,
    stepwise_loss,
)
from tests.test_losses import GRADIENT, VALUE, vectors

PARTS = {"feat_student": "student_features", "feat_teacher": "teacher_features", "actor": "actor", "critic": "critic"}
BOUNDS = ((0, 3), (3, 6), (6, 7))


@pytest.fixture(scope="module")
def data(golden: Path) -> dict[str, Tensor]:
    return vectors(golden, "15_ksm")


@pytest.fixture
def selector(data: dict[str, Tensor]) -> Selector:
    """With the golden weights."""
    made = Selector(8, 12, 3, 4, feature_hidden=6, hidden=10).double()
    for prefix, name in PARTS.items():
        for place, layer in enumerate(getattr(made, name).layers):
            layer.weight.data = data[f"in.{prefix}_w{place}"].T.clone(memory_format=torch.contiguous_format)
            layer.bias.data = data[f"in.{prefix}_b{place}"].clone()
    return made


def seen_of(data: dict[str, Tensor], first: int = 0, last: int = 7) -> Seen:
    sides = (data[f"in.{side}_cls"][first:last] for side in ("student", "teacher"))
    return Seen(*sides, torch.ones(last - first, 3, dtype=torch.bool))


def segments_of(data: dict[str, Tensor]) -> list[Segment]:
    return [Segment(seen_of(data, first, min(last + 1, 7)), data["out.actions"][first:last],
                    data["out.explore_soft"][first:last], reward)
            for (first, last), reward in zip(BOUNDS, data["out.phase_rewards"].tolist(), strict=True)]


def whole(data: dict[str, Tensor]) -> Segment:
    return Segment(seen_of(data), data["out.actions"], data["out.explore_soft"], 0.0)


def gamma_of(data: dict[str, Tensor]) -> float:
    return float(data["in.gamma"])


# Golden vectors


def test_golden_states_and_actions(data: dict[str, Tensor], selector: Selector) -> None:
    states = joined(*selector.features(seen_of(data)))
    torch.testing.assert_close(states, data["out.states"], **VALUE)
    torch.testing.assert_close(selector.act(states), data["out.actions"], **VALUE)
    torch.testing.assert_close(selector.choose(seen_of(data)), data["out.actions"], **VALUE)
    torch.testing.assert_close(selector.judge(states, data["out.actions"]), data["out.q"], **VALUE)
    threshold = float(data["in.threshold"])
    assert torch.equal(hard(data["out.actions"], threshold), data["out.hard_actions"].double())
    for kind, actions in (("soft", data["out.actions"]), ("hard", hard(data["out.actions"], threshold))):
        losses = (actions * data["in.knowledge_losses"]).sum(dim=1)
        torch.testing.assert_close(losses, data[f"out.{kind}_step_loss"], **VALUE)


def test_golden_state_of_a_short_batch(data: dict[str, Tensor], selector: Selector) -> None:
    matches = []
    for step in range(7):
        seen = padded(data["in.student_cls"][step, :2], data["in.teacher_cls"][step, :2], 3)
        (state,) = joined(*selector.features(seen))
        assert not state[-16:].any()
        matches.append(torch.allclose(state, data["out.state_short_batch"], rtol=0, atol=1e-9))
    assert sum(matches) == 1


def test_golden_estimates_and_critic_losses(data: dict[str, Tensor], selector: Selector) -> None:
    estimates = estimated_rewards(selector, whole(data), gamma_of(data))
    torch.testing.assert_close(estimates, data["out.r_hat"], **VALUE)
    for rewards, expected in (("in.step_rewards", "steps"), ("out.explore_soft", "explore")):
        loss = stepwise_loss(estimates, data[rewards])
        torch.testing.assert_close(loss, data[f"out.critic_loss_{expected}"], **VALUE)
    losses = [segment_loss(estimated_rewards(selector, segment, gamma_of(data)), segment.reward)
              for segment in segments_of(data)]
    torch.testing.assert_close(torch.stack(losses).mean(), data["out.critic_loss_phase"], **VALUE)


def test_golden_exploration(data: dict[str, Tensor]) -> None:
    actions, done = data["out.actions"], data["out.hard_actions"].double()
    for (start, end), (first, last) in pairwise(BOUNDS):
        for step in range(first, last):
            soft = similarity_reward(actions[step], actions[start:end])
            counted = count_reward(done[step], done[start:end], float(data["in.alpha"]))
            torch.testing.assert_close(soft, data["out.explore_soft"][step], **VALUE)
            torch.testing.assert_close(counted, data["out.explore_hard"][step], **VALUE)


@pytest.mark.parametrize("full", [False, True], ids=["semi", "full"])
def test_golden_gradients_of_the_critic(data: dict[str, Tensor], selector: Selector, full: bool) -> None:
    name = "full" if full else "semi"
    losses = [segment_loss(estimated_rewards(selector, segment, gamma_of(data), full), segment.reward)
              for segment in segments_of(data)]
    torch.stack(losses).mean().backward()
    torch.testing.assert_close(selector.critic.layers[0].weight.grad.T,
                               data[f"grad.critic_loss_phase__critic_w0_{name}"], **GRADIENT)
    if not full:
        torch.testing.assert_close(selector.teacher_features.layers[1].bias.grad,
                                   data["grad.critic_loss_phase__feat_teacher_b1_semi"], **GRADIENT)
        selector.zero_grad()
        stepwise_loss(estimated_rewards(selector, whole(data), gamma_of(data)), data["in.step_rewards"]).backward()
        torch.testing.assert_close(selector.critic.layers[0].weight.grad.T,
                                   data["grad.critic_loss_steps__critic_w0"], **GRADIENT)


def test_golden_gradients_of_the_actor(data: dict[str, Tensor], selector: Selector) -> None:
    loss = actor_loss(selector, seen_of(data))
    torch.testing.assert_close(-loss, data["out.actor_objective"], **VALUE)
    loss.backward()
    torch.testing.assert_close(-selector.actor.layers[2].bias.grad, data["grad.actor_objective__actor_b2"], **GRADIENT)
    torch.testing.assert_close(-selector.student_features.layers[1].bias.grad,
                               data["grad.actor_objective__feat_student_b1"], **GRADIENT)


# Identities


def test_estimates_telescope(data: dict[str, Tensor], selector: Selector) -> None:
    """Sum of r over b..e = Q_b + (1 - gamma) (Q_b+1 + .. + Q_e) - gamma Q_e+1."""
    gamma = 0.9
    values = selector.judge(joined(*selector.features(seen_of(data))), data["out.actions"])
    for (first, last), segment in zip(BOUNDS, segments_of(data), strict=True):
        after = values[last] if last < 7 else 0
        expected = values[first] + (1 - gamma) * values[first + 1:last].sum() - gamma * after
        torch.testing.assert_close(estimated_rewards(selector, segment, gamma).sum(), expected)


def test_a_segment_of_one_step_is_the_stepwise_loss(data: dict[str, Tensor], selector: Selector) -> None:
    segment = Segment(seen_of(data, 2, 4), data["out.actions"][2:3], torch.zeros(1), 0.3)
    estimates = estimated_rewards(selector, segment, 0.98)
    torch.testing.assert_close(segment_loss(estimates, 0.3), stepwise_loss(estimates, torch.tensor([0.3]).double()))


def test_who_learns_from_what(data: dict[str, Tensor], selector: Selector) -> None:
    """N_T with the critic, N_S with the actor."""
    def taught(loss: Tensor) -> set[str]:
        selector.zero_grad()
        loss.backward()
        return {name for name, part in selector.named_children()
                if any(p.grad is not None and p.grad.any() for p in part.parameters())}

    for full in (False, True):
        estimates = estimated_rewards(selector, whole(data), 0.98, full)
        assert taught(segment_loss(estimates, 1.0)) == {"critic", "teacher_features"}
    assert taught(actor_loss(selector, seen_of(data))) == {"critic", "actor", "student_features"}


def test_following_the_gradient_raises_the_value(data: dict[str, Tensor], selector: Selector) -> None:
    before = actor_loss(selector, seen_of(data))
    learning = [*selector.actor.parameters(), *selector.student_features.parameters()]
    for parameter, gradient in zip(learning, torch.autograd.grad(before, learning), strict=True):
        parameter.data -= 1e-3 * gradient
    assert actor_loss(selector, seen_of(data)) < before


# Actions, rewards, states


def test_the_threshold_itself_is_reached() -> None:
    actions = torch.tensor([[0.2, 0.19, 0.9, 0.0]])
    assert hard(actions, 0.2).tolist() == [[1, 0, 1, 0]]


def test_rewards_by_hand() -> None:
    earlier = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    assert similarity_reward(torch.tensor([1.0, 0, 0, 0]), earlier).item() == pytest.approx(-0.5)
    assert similarity_reward(torch.tensor([0, 0, 3.0, 0]), earlier).item() == 0
    assert count_reward(torch.tensor([0.0, 0, 1, 0]), earlier, 0.2).item() == pytest.approx(0.2)
    assert count_reward(torch.tensor([1.0, 0, 0, 0]), earlier.repeat(3, 1), 0.2).item() == pytest.approx(0.1)


def test_what_absent_examples_hold_does_not_matter(selector: Selector) -> None:
    states = torch.randn(2, 8).double(), torch.randn(2, 12).double()
    seen = padded(*states, 3)
    garbage = Seen(seen.student.clone(), seen.teacher.clone(), seen.present)
    garbage.student[0, 2], garbage.teacher[0, 2] = 1e9, torch.nan
    torch.testing.assert_close(selector.choose(garbage), selector.choose(seen), rtol=0, atol=0)


def test_an_extreme_state_has_an_action(selector: Selector) -> None:
    action = selector.choose(padded(torch.full((3, 8), 1e4).double(), torch.full((3, 12), -1e4).double(), 3))
    assert ((action >= 0) & (action <= 1)).all()


def test_frozen_is_a_copy_without_parameters(data: dict[str, Tensor], selector: Selector) -> None:
    frozen = selector.frozen()
    assert not list(frozen.parameters())
    assert frozen.state_dict().keys() == selector.state_dict().keys()
    selector.actor.layers[0].bias.data += 1
    torch.testing.assert_close(frozen.choose(seen_of(data)), data["out.actions"], **VALUE)
    frozen.load_state_dict(selector.state_dict())
    assert torch.equal(frozen.choose(seen_of(data)), selector.choose(seen_of(data)))


def test_autocast_leaves_networks_alone() -> None:
    network, values = Network(8, 16, 2), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(network(values), network(values.clone()))
        assert network(values.bfloat16()).dtype == torch.float32
        inside = network(values)
    assert torch.equal(inside, network(values))


def test_sizes_are_the_papers() -> None:
    made = Selector(768, 768, 32, 4)
    assert [tuple(layer.weight.shape) for layer in made.actor.layers] == [(256, 512), (256, 256), (4, 256)]
    assert [tuple(layer.weight.shape) for layer in made.critic.layers] == [(256, 516), (256, 256), (1, 256)]
    assert [tuple(layer.weight.shape) for layer in made.student_features.layers] == [(256, 768), (8, 256)]
    assert module.FEATURES == 8


def test_nothing_is_preferred_before_there_was_a_reward() -> None:
    torch.manual_seed(0)
    selector = Selector(6, 5, 3, 4)
    seen = padded(torch.randn(3, 6), torch.randn(3, 5), 3)
    torch.testing.assert_close(selector.choose(seen), torch.full((1, 4), 0.5), rtol=0, atol=0.02)
    values = selector.judge(joined(*selector.features(seen)).expand(2, -1), torch.tensor([[0.0] * 4, [1.0] * 4]))
    assert values.abs().max() < 0.02
