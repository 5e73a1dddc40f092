"""Which teacher layers are read, and how several become one."""

import pytest
import torch

from kdcore.errors import UserError
from kdcore.mapping import RandomLayers, skip
from kdcore.selection import Selection, attentive, drawn, fixed, grouped, mix, shares
from tests.methods.toys import progress


def test_fixed() -> None:
    selection = fixed(skip(12, 6))
    assert selection.slots == (1, 2, 3, 4, 5)
    assert selection.at(progress(0)) == selection.at(progress(9)) == selection.candidates == (2, 4, 6, 8, 10)
    assert fixed(((1, 4), (2, 4))).at(progress(0)) == (4, 4)  # one teacher layer may teach two


@pytest.mark.parametrize("resample", ["epoch", "step"])
def test_drawn_layers_are_those_of_rail(resample: str) -> None:
    selection, rail = drawn((1, 3), 12, 5, resample), RandomLayers(2, 12, 5, resample)
    assert selection.candidates == tuple(range(1, 12))
    seen = set()
    for step in range(20):
        now = progress(step, epochs=5)
        layers = selection.at(now)
        assert layers == rail.at(now.epoch, now.step)
        seen.add(layers)
    assert (4 if resample == "epoch" else 12) <= len(seen) <= (5 if resample == "epoch" else 20)


def test_attentive_reads_all_intermediate_layers() -> None:
    selection = attentive((1, 2), 12, "cls")
    assert selection.at(progress(3)) == selection.candidates == tuple(range(1, 12))
    with pytest.raises(UserError, match=r"teacher of 1 layer\(s\) has no intermediate layer"):
        attentive((1,), 1, "cls")


def test_grouped_reads_each_layer_of_overlapping_blocks_once() -> None:
    selection = grouped((1, 2), ((1, 2, 3, 4), (3, 4, 5, 6)))
    assert selection.at(progress(0)) == (1, 2, 3, 4, 5, 6)
    expected = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]]) / 4
    torch.testing.assert_close(shares(selection), expected)
    assert shares(grouped((1, 2), ((1, 3), (5,)))).tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


@pytest.mark.parametrize("selection", [fixed(skip(6, 3)), attentive((1,), 3, "mean")], ids=["fixed", "attentive"])
def test_only_blocks_have_shares(selection: Selection) -> None:
    assert shares(selection) is None


def test_mix() -> None:
    layers = torch.randn(4, 3, 2, 5)
    assert mix(layers, None) is layers
    weights = torch.rand(4, 2, 3)
    by_hand = (weights[:, :, :, None, None] * layers[:, None]).sum(dim=2)
    torch.testing.assert_close(mix(layers, weights), by_hand)
    torch.testing.assert_close(mix(layers[..., 0, 0][..., None], weights)[..., 0], by_hand[:, :, 0, 0])
    picked = torch.eye(3)[[2, 0]].expand(4, -1, -1)
    assert torch.equal(mix(layers, picked), layers[:, [2, 0]])


def test_a_mixture_keeps_float32_under_autocast() -> None:
    layers, weights = torch.randn(4, 3, 5), torch.rand(4, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = mix(layers, weights)
    assert torch.equal(mixed, mix(layers, weights))
