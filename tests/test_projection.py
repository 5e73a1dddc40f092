"""Linear bridges between widths: precision, seeds, one map or many, and the collapse watch."""

import pytest
import torch

from kdcore.losses import unit
from kdcore.projection import COLLAPSE_ALARMS, Bridge, Projection, collapse, initialised_from


def test_shared_map_by_hand() -> None:
    projection = Projection(inputs=2, width=2)
    projection.maps[0].weight.data = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    projection.maps[0].bias.data = torch.tensor([0.0, 2.0])
    vectors = torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
    torch.testing.assert_close(projection(vectors), torch.tensor([[[0.6, 0.8], [0.0, 1.0]]]))


def test_each_slot_goes_through_its_own_map() -> None:
    projection = Projection(inputs=3, width=4, maps=2)
    vectors = torch.randn(5, 2, 3)
    expected = [unit(linear(vectors[:, slot])) for slot, linear in enumerate(projection.maps)]
    torch.testing.assert_close(projection(vectors), torch.stack(expected, dim=1))
    with pytest.raises(ValueError, match="zip"):
        projection(torch.randn(5, 3, 3))


def test_vectors_may_keep_their_length() -> None:
    vectors = torch.randn(5, 2, 3)
    for maps in (1, 2):
        projection = Projection(inputs=3, width=4, maps=maps, normalise=False)
        expected = [projection.maps[slot % maps](vectors[:, slot]) for slot in range(2)]
        torch.testing.assert_close(projection(vectors), torch.stack(expected, dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round(dtype: torch.dtype) -> None:
    projection, vectors = Projection(inputs=16, width=8), torch.randn(4, 2, 16)
    exact = projection(vectors)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(projection(vectors), exact)
        assert projection(vectors.to(dtype)).dtype == torch.float32


def test_frozen_map_takes_no_gradient_but_lets_it_through() -> None:
    projection, vectors = Projection(inputs=3, width=4, frozen=True), torch.randn(2, 1, 3, requires_grad=True)
    projection(vectors).sum().backward()
    assert all(parameter.grad is None for parameter in projection.parameters())
    assert vectors.grad.abs().sum() > 0


def test_weights_depend_on_the_seed_alone() -> None:
    weights = []
    for disturbance, seed in ((1, 5), (2, 5), (3, 6)):
        torch.manual_seed(disturbance)
        before = torch.get_rng_state()
        with initialised_from(seed):
            weights.append(Projection(4, 4).maps[0].weight)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_collapse_looks_at_the_worst_slot() -> None:
    apart, alike = torch.eye(4), torch.ones(4, 4) / 2
    healthy = collapse(torch.stack([apart, apart], dim=1))
    assert healthy["collapse"] == 0
    assert healthy["spread"] == 0.5  # one entry of four is 1, the others 0
    one_slot = collapse(torch.stack([apart, alike], dim=1))
    assert one_slot["collapse"] == 1
    assert one_slot["spread"] == 0
    for alarm in COLLAPSE_ALARMS:
        assert not alarm.rings(float(healthy[alarm.diagnostic]))
        assert alarm.rings(float(one_slot[alarm.diagnostic]))
    assert collapse(torch.ones(1, 2, 4)) == {}
    assert not any(value.requires_grad for value in collapse(torch.randn(3, 1, 4, requires_grad=True)).values())


def test_bridge_of_equal_widths_does_nothing() -> None:
    bridge, states = Bridge(4, 4, width=2), (torch.randn(3, 2, 4), torch.randn(3, 5, 4))
    assert [torch.equal(*pair) for pair in zip(bridge(*states), states, strict=True)] == [True, True]
    assert (bridge.width, list(bridge.parameters()), bridge.watch(states[1])) == (4, [], {})


def test_bridge_of_both_sides_or_of_the_student_alone() -> None:
    student, teacher = torch.randn(3, 2, 4), torch.randn(3, 5, 6)
    both = Bridge(4, 6, width=2)
    assert [tuple(side.shape) for side in both(student, teacher)] == [(3, 2, 2), (3, 5, 2)]
    assert both.width == 2
    assert both.watch(both(student, teacher)[1]).keys() == {"collapse", "spread"}
    assert sum(p.numel() for p in both.parameters() if p.requires_grad) == 2 * (4 + 1) + 2 * (6 + 1)
    frozen = Bridge(4, 6, width=2, bias=False, freeze_teacher=True)
    assert sum(p.numel() for p in frozen.parameters() if p.requires_grad) == 2 * 4
    alone = Bridge(4, 6, width=None)
    mapped, same = alone(student, teacher)
    assert torch.equal(same, teacher)
    torch.testing.assert_close(mapped, alone.student.maps[0](student))
    assert (alone.width, alone.watch(same)) == (6, {})
