"""Counting drawn layers, against all draws there are."""

from itertools import combinations

import numpy as np
import pytest

from kdcore.analysis import draws
from kdcore.mapping import RandomLayers


def entry(**layers: float) -> dict:
    return {"diagnostics": {f"layer/{name[1:]}": value for name, value in layers.items()} | {"collapse": 0.5}}


def test_layers_come_by_slot_whatever_their_order():
    many = entry(s2=4.0, s1=1.0, s10=11.0)
    assert draws.drawn([many, {"diagnostics": {"collapse": 0.1}}]) == [(1.0, 4.0, 11.0)]
    assert draws.drawn([]) == []


def test_counts_by_hand():
    layers = [(1.0, 3.0), (1.0, 2.0), (2.0, 3.0)]
    assert draws.counts(layers, 4).tolist() == [[2, 1, 0, 0], [0, 1, 2, 0]]


@pytest.mark.parametrize("layer", [0.0, 5.0])
def test_a_layer_that_cannot_be_drawn_is_an_error(layer):
    with pytest.raises(ValueError, match=rf"layer {layer:g} was drawn, expected 1\.\.4"):
        draws.counts([(layer,)], 4)


@pytest.mark.parametrize(("slots", "candidates"), [(1, 1), (2, 5), (5, 11), (3, 3)])
def test_the_expectation_is_that_of_all_draws(slots, candidates):
    everything = list(combinations(range(1, candidates + 1), slots))
    table = draws.expected(slots, candidates)
    np.testing.assert_allclose(table, draws.counts(everything, candidates) / len(everything))
    np.testing.assert_allclose(table.sum(axis=1), 1)
    np.testing.assert_allclose(table.sum(axis=0), slots / candidates)
    means = table @ np.arange(1, candidates + 1)
    np.testing.assert_allclose(means, np.arange(1, slots + 1) * (candidates + 1) / (slots + 1))


def test_what_methods_draw_comes_near_it():
    layers = [RandomLayers(5, 12, seed, "epoch").at(epoch, 0) for seed in range(20) for epoch in range(50)]
    assert np.abs(draws.counts(layers, 11) / 1000 - draws.expected(5, 11)).max() < 0.06
