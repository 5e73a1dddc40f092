"""Which teacher layers a method drew at random, against what uniform draws give.

Methods that draw layers log them as `layer/1`, `layer/2`, ... by slot; the history of a training keeps them by epoch.
Axes: k slots, c candidate layers 1..c (all but the teacher's last).
"""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Float, Int

PREFIX = "layer/"
"""Of the diagnostics that name a drawn layer; the slot follows, from 1."""


def drawn(history: Sequence[Mapping[str, Any]]) -> list[tuple[float, ...]]:
    """The layers of each epoch that drew some, by slot.

    Layers that are drawn at every step come as their mean over the epoch, which may look like a layer.
    """
    found = []
    for entry in history:
        slots = {int(name.removeprefix(PREFIX)): value for name, value in entry["diagnostics"].items()
                 if name.startswith(PREFIX)}
        if slots:
            found.append(tuple(slots[slot] for slot in sorted(slots)))
    return found


def counts(layers: Sequence[Sequence[float]], candidates: int) -> Int[np.ndarray, "k c"]:
    """How often each slot had each of the layers 1..`candidates`; raises ValueError for any other layer."""
    table = np.zeros((len(layers[0]), candidates), dtype=np.int64)
    for epoch in layers:
        for slot, layer in enumerate(epoch):
            if not 1 <= layer <= candidates:
                raise ValueError(f"layer {layer:g} was drawn, expected 1..{candidates}")
            table[slot, int(layer) - 1] += 1
    return table


def expected(slots: int, candidates: int) -> Float[np.ndarray, "k c"]:
    """Share of draws in which each slot has each layer, when k of c layers are drawn uniformly and sorted.

    The j-th of k is layer i in C(i-1, j-1) C(c-i, k-j) of the C(c, k) draws. Rows sum to 1, columns to k/c.
    """
    ways = [[comb(layer - 1, slot - 1) * comb(candidates - layer, slots - slot) for layer in range(1, candidates + 1)]
            for slot in range(1, slots + 1)]
    return np.array(ways) / comb(candidates, slots)
