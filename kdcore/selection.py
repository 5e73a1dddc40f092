"""Selection: which teacher layers teach which student layers, and how several of them are made one.

One of two axes: any selection composes with any knowledge (`kdcore/knowledge.py`), which says what of a layer is
taught. Fixed and random selections read one teacher layer for each of the k taught student layers; the others read n
layers and mix them, by weights [b, k, n], into one for each.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kdcore.errors import UserError
from kdcore.losses import layer_mixture
from kdcore.mapping import Pairs, RandomLayers
from kdcore.objective import Progress

Blocks = tuple[tuple[int, ...], ...]
"""The teacher layers of each taught student layer."""


@dataclass(frozen=True)
class Selection:
    """Made by one of the functions below.

    `slots` are the student layers that are taught, `candidates` the teacher layers that may be read in any step.
    At most one of the others is set: teacher layers are drawn, weighed by how alike their `match` states are to the
    student's, or joined in `blocks`. With none, the i-th candidate teaches the i-th slot.
    """

    slots: tuple[int, ...]
    candidates: tuple[int, ...]
    draw: RandomLayers | None = None
    match: Literal["cls", "mean"] | None = None
    blocks: Blocks | None = None

    def at(self, progress: Progress) -> tuple[int, ...]:
        """The teacher layers that are read at this moment, in the order in which they are mixed."""
        return self.draw.at(progress.epoch, progress.step) if self.draw else self.candidates


def fixed(pairs: Pairs) -> Selection:
    """Each student layer learns from the teacher layer that it is paired with."""
    return Selection(tuple(student for student, _ in pairs), tuple(teacher for _, teacher in pairs))


def drawn(slots: tuple[int, ...], teacher_layers: int, seed: int, resample: Literal["epoch", "step"]) -> Selection:
    """Distinct intermediate teacher layers, drawn anew per epoch or step (RAIL-KD).

    Raises UserError when the teacher has fewer intermediate layers than there are slots.
    """
    draw = RandomLayers(len(slots), teacher_layers, seed, resample)
    return Selection(slots, tuple(draw.candidates), draw=draw)


def attentive(slots: tuple[int, ...], teacher_layers: int, match: Literal["cls", "mean"]) -> Selection:
    """All intermediate teacher layers, weighed for each example and slot (ALP-KD).

    Raises UserError when the teacher has no intermediate layer.
    """
    if teacher_layers < 2:
        raise UserError(f"a teacher of {teacher_layers} layer(s) has no intermediate layer to attend to; use a deeper "
                        "teacher, or pair the layers: `selection: fixed`")
    return Selection(slots, tuple(range(1, teacher_layers)), match=match)


def grouped(slots: tuple[int, ...], blocks: Blocks) -> Selection:
    """Each student layer learns from its block of teacher layers (CKD)."""
    return Selection(slots, tuple(sorted({layer for block in blocks for layer in block})), blocks=blocks)


def shares(selection: Selection) -> Float[Tensor, "k n"] | None:
    """Equal weights for the layers of each slot's block and none for the others; None without blocks."""
    if selection.blocks is None:
        return None
    return torch.tensor([[(layer in block) / len(block) for layer in selection.candidates]
                         for block in selection.blocks])


def mix(values: Float[Tensor, "b n *rest"], weights: Float[Tensor, "b k n"] | None) -> Float[Tensor, "b k *rest"]:
    """The layers summed with the weights of each slot; without weights the i-th layer is the i-th slot's."""
    if weights is None:
        return values
    return layer_mixture(weights, values.flatten(2)).unflatten(2, values.shape[2:])
