"""How alike the layers of two models are: the cosine between their states, for every pair of layers.

Haidar et al. 2022 (RAIL-KD), figure 2. A cosine compares directions within one space, so both models must have the
same width. Axes: n teacher layers, m student layers, b examples, t tokens, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from kdcore.data.tokens import TokenTable
from kdcore.features import Kind, layer_keys
from kdcore.losses import unit
from kdcore.models.reading import read

Pooling = Literal["mean", "cls", "tokens"]
_KINDS: dict[Pooling, Kind] = {"mean": "mean", "cls": "cls", "tokens": "hidden"}


@dataclass(frozen=True, eq=False)
class States:
    """Of one batch: the states of all layers 1.. [layers, b, d] or [layers, b, t, d], and which tokens are real [b, t].
    """

    values: Tensor
    mask: Tensor


def read_states(model: PreTrainedModel, tokens: TokenTable, batches: Sequence[Sequence[int]],
                pooling: Pooling) -> list[States]:
    """The states of all layers of a model in eval mode, batch by batch, on the CPU.

    With `tokens` they are [layers, b, t, d]: for 100 texts of 128 tokens, 12 layers and width 768 half a gigabyte.
    """
    keys = layer_keys(_KINDS[pooling], range(1, model.config.num_hidden_layers + 1))
    found = []
    with torch.inference_mode():
        for rows in batches:
            inputs = {name: values.to(model.device) for name, values in tokens.pad(torch.tensor(rows)).items()}
            features = read(model, inputs, frozenset(keys))
            states = torch.stack([features[key].float() for key in keys])
            found.append(States(states.cpu(), inputs["attention_mask"].cpu()))
    return found


def similarity(teacher: Sequence[States], student: Sequence[States]) -> Float[Tensor, "n m"]:
    """Mean cosine over the examples of all batches, for every teacher layer (row) and student layer (column).

    Of token states: first the mean over an example's real tokens. Both must be of the same batches.
    """
    cosines = [layer_cosines(theirs.values, ours.values, theirs.mask)
               for theirs, ours in zip(teacher, student, strict=True)]
    return torch.cat(cosines, dim=-1).double().mean(dim=-1)


def layer_cosines(teacher: Float[Tensor, "n b *t d"], student: Float[Tensor, "m b *t d"],
                  mask: Int[Tensor, "b tokens"]) -> Float[Tensor, "n m b"]:
    """The cosine of each example's states in every pair of layers; of token states their mean over real tokens."""
    cosines = torch.einsum("n...d,m...d->nm...", unit(teacher), unit(student))
    if cosines.dim() == 3:
        return cosines
    return cosines.masked_fill(mask == 0, 0).sum(dim=-1) / mask.sum(dim=-1)
