"""Knowledge: what of a layer is taught, and how far the student is from it.

One of two axes: any knowledge composes with any selection of teacher layers (`kdcore/selection.py`). It reads one kind
of feature of every layer and gives a distance per example and taught layer. What a selection mixes is what is compared:
states after their projection, scores as they are, attention and relations as probabilities.
"""

from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdcore.features import Kind
from kdcore.losses import outer_distance, squared_distance, unit
from kdcore.projection import Projection
from kdcore.selection import Blocks, mix
from kdcore.token_losses import (
    attention_divergence,
    hidden_distance,
    probabilities,
    real_scores,
    real_states,
    relation_scores,
    score_distance,
    split_heads,
)

Name = Literal["cls", "mean", "hidden", "attention_scores", "attention", "query_relations", "key_relations",
               "value_relations", "fsp"]
NAMES: tuple[Name, ...] = get_args(Name)

Student = Float[Tensor, "b k *ours"]
Teacher = Float[Tensor, "b n *theirs"]
Weights = Float[Tensor, "b k n"] | None
Mask = Int[Tensor, "b t"] | None


class Knowledge(nn.Module, ABC):
    """Compares features of one `kind` of k taught student layers with those of n selected teacher layers."""

    kind: Kind

    @abstractmethod
    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b distances"]:
        """One distance per example and taught layer (`Fsp`: and pair of neighbours).

        `weights` mix the teacher's layers, see `mix`; `mask` may be None where only sentences are compared.
        """


class Maps(nn.Module):
    """Brings states to one width by a map per side, and the teacher's layers to one per slot by mixing."""

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        """Maps of [b, k, ..., width]: `Projection` or `nn.Identity`."""
        super().__init__()
        self.student = student
        self.teacher = teacher

    def forward(
        self, student: Student, teacher: Teacher, weights: Weights
    ) -> tuple[Float[Tensor, "b k *common"], Float[Tensor, "b m *common"]]:
        """Both sides in the common space; the teacher's n layers stay apart without `weights`."""
        return self.student(student), mix(self.teacher(teacher), weights)


class BlockMaps(nn.Module):
    """Brings the teacher's layers to one per slot and to the student's width: a map per block, of its joined states."""

    def __init__(self, blocks: Blocks, candidates: tuple[int, ...], inputs: int, width: int, bias: bool) -> None:
        """`candidates` are the layers in the order in which they come."""
        super().__init__()
        self.places = tuple(tuple(candidates.index(layer) for layer in block) for block in blocks)
        self.maps = nn.ModuleList(Projection(len(block) * inputs, width, bias, normalise=False) for block in blocks)

    def forward(
        self, student: Student, teacher: Teacher, weights: Weights
    ) -> tuple[Float[Tensor, "b k *common"], Float[Tensor, "b k *common"]]:
        joined = [torch.cat([teacher[:, place:place + 1] for place in block], dim=-1) for block in self.places]
        return student, torch.cat([linear(block) for linear, block in zip(self.maps, joined, strict=True)], dim=1)


class Sentences(Knowledge):
    """The state of token 0 (`cls`) or the mean of a sentence's states (`mean`)."""

    def __init__(self, kind: Literal["cls", "mean"], bridge: Maps | BlockMaps, normalise: bool) -> None:
        """With `normalise` the squared distance of unit vectors (PKD, RAIL-KD), else the mean squared difference over
        the width (ALP-KD, CKD)."""
        super().__init__()
        self.kind = kind
        self.bridge = bridge
        self.normalise = normalise

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b k"]:
        ours, theirs = self.bridge(student, teacher, weights)
        if self.normalise:
            return squared_distance(unit(ours), unit(theirs))
        return squared_distance(ours, theirs) / ours.shape[-1]


class Tokens(Knowledge):
    """The states of all tokens (TinyBERT)."""

    kind: Kind = "hidden"

    def __init__(self, bridge: Maps | BlockMaps) -> None:
        super().__init__()
        self.bridge = bridge

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b k"]:
        real = _given(mask)
        ours, theirs = self.bridge(real_states(student, real), real_states(teacher, real), weights)
        return hidden_distance(ours, theirs, real)


class Scores(Knowledge):
    """Attention scores before mask and softmax, head by head (TinyBERT)."""

    kind: Kind = "scores"

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b k"]:
        real = _given(mask)
        return score_distance(student, mix(real_scores(teacher, real), weights), real)


class Attention(Knowledge):
    """Attention as distributions over keys, head by head (MiniLM)."""

    kind: Kind = "scores"

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b k"]:
        real = _given(mask)
        return attention_divergence(student, mix(probabilities(teacher, real), weights), real)


class Relations(Knowledge):
    """How the queries, keys or values of a text's tokens relate to one another, in relation heads (MiniLM)."""

    def __init__(self, kind: Literal["query", "key", "value"], heads: int) -> None:
        """`heads` divides the widths of both models."""
        super().__init__()
        self.kind = kind
        self.heads = heads

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b k"]:
        real = _given(mask)
        ours, theirs = (relation_scores(split_heads(side, self.heads), real) for side in (student, teacher))
        return attention_divergence(ours, mix(probabilities(theirs, real), weights), real)


class Fsp(Knowledge):
    """How the CLS state of each taught layer relates to that of the next one: the outer product of the two."""

    kind: Kind = "cls"

    def __init__(self, bridge: Maps) -> None:
        super().__init__()
        self.bridge = bridge

    def forward(self, student: Student, teacher: Teacher, weights: Weights, mask: Mask) -> Float[Tensor, "b pairs"]:
        ours, theirs = self.bridge(student, teacher, weights)
        return outer_distance(ours[:, :-1], ours[:, 1:], theirs[:, :-1], theirs[:, 1:]) / ours.shape[-1] ** 2


def _given(mask: Mask) -> Int[Tensor, "b t"]:
    if mask is None:
        raise ValueError("token-level features came without a mask")
    return mask
