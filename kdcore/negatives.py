"""Negatives of contrastive losses: the training examples that each example is to be told apart from.

What is drawn for an example depends on the seed, the step and its id alone. So it stays the same however a batch is
cut into micro-batches or dealt to ranks, and after a resume. The numbers are hashes, computed for all examples at once
on the device where the ids are: no generator, no loop over examples, and the host waits for nothing.
"""

import random
from typing import Literal

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.losses import NO_LABEL

Source = Literal["different", "any", "same"]
"""Examples of another label, all others, or others of the same label. An example without a label draws from all
others, since nobody knows which are of its kind, and is itself none of those with another or the same label."""

_BITS = 2**64
_GAMMA = 0x9E3779B97F4A7C15 - _BITS
_FACTORS = (0xBF58476D1CE4E5B9 - _BITS, 0x94D049BB133111EB - _BITS)
"""splitmix64's constants as signed numbers; products wrap around."""


class Negatives(nn.Module):
    """Draws `count` negatives for each example of a batch, uniformly from its pool.

    Without replacement, unless the smallest pool holds no more than `count` examples: then with replacement, for all.
    Holds no state that a checkpoint would need.
    """

    spans: Tensor
    order: Tensor

    def __init__(self, labels: Int64[Tensor, " examples"], count: int, source: Source, seed: int) -> None:
        """`labels` are those of all training examples by id, -1 where there is none; `any` does not look at them.

        Raises:
            UserError: an example has an empty pool.
        """
        super().__init__()
        self.count = count
        self.seed = seed
        spans, order = _pools(torch.zeros_like(labels) if source == "any" else labels, source)
        self.register_buffer("spans", spans, persistent=False)
        self.register_buffer("order", order, persistent=False)
        smallest, example = (int(value) for value in spans[:, 3].min(dim=0))
        if count and not smallest:
            raise UserError(f"{count} negatives are to be drawn from examples of {_MEANING[source]}, but for training "
                            f"example {example} (label {labels[example]}) there are none; {_REMEDY[source]}")
        self.replacement = count >= smallest
        # Among pools this large, twice as many draws as wanted practically never hold too many repeats (12 sigma).
        self.large = 4 * count + 64
        self.all_large = smallest >= self.large

    def forward(self, ids: Int[Tensor, " b"], step: int) -> Int64[Tensor, "b count"]:
        """Ids of the negatives of these examples in a step.

        An id out of range is an IndexError on the CPU and a device-side assertion on CUDA.
        """
        low, cut, width, pools = self.spans.index_select(0, ids).unsqueeze(-1).unbind(dim=1)
        # A text seed is hashed with SHA-512: neighbouring seeds and steps share nothing, unlike seed + step.
        start = random.Random(f"{self.seed} negatives {step}").getrandbits(63)
        places = low + self._places(_mixed(ids.long().unsqueeze(-1) + start), pools)
        return self.order[places + width * (places >= cut)]

    def _places(self, keys: Int64[Tensor, "b 1"], pools: Int64[Tensor, "b 1"]) -> Int64[Tensor, "b count"]:
        """Numbers in 0..pool-1 for each row."""
        if self.replacement:
            return _numbers(keys, self.count) % pools
        drawn = _first_distinct(_numbers(keys, 2 * self.count + 32) % pools, self.count)
        if self.all_large:
            return drawn
        tickets = _numbers(keys, self.large)
        nobody = torch.arange(self.large, device=keys.device) >= pools
        winners = tickets.masked_fill(nobody, 2**63 - 1).topk(self.count, dim=1, largest=False).indices
        return torch.where(pools < self.large, winners, drawn)


_MEANING = {"different": "another label", "any": "any label", "same": "the same label"}
_REMEDY = {"different": "draw them from `any`", "any": "training needs two examples",
           "same": "draw them from `different` or `any`"}


def _pools(labels: Int64[Tensor, " n"], source: Source) -> tuple[Int64[Tensor, "n 4"], Int64[Tensor, " n"]]:
    """Where each example's pool lies in an order by label.

    A pool is a stretch with a cut: it begins at `low`, leaves out `width` places from `cut` on, and holds `pool`
    examples. Another label is everything but the stretch of one's own; the same label is that stretch without oneself.
    An example without a label, which stand first, has all others, as if every label were the same.
    Returns (low, cut, width, pool) by example, and the order.
    """
    order = labels.argsort(stable=True)
    kind, sizes = labels.unique(return_inverse=True, return_counts=True)[1:]
    first, size = (sizes.cumsum(0) - sizes)[kind], sizes[kind]
    own, one, unknown = order.argsort(), torch.ones_like(labels), labels == NO_LABEL
    if source == "different":
        without = unknown.sum()
        spans = without.expand_as(labels), first, size, len(labels) - without - size
    else:
        spans = first, own, one, size - 1
    free = torch.stack([torch.zeros_like(labels), own, one, one * (len(labels) - 1)], dim=1)
    return torch.where(unknown[:, None], free, torch.stack(spans, dim=1)), order


def _first_distinct(draws: Int64[Tensor, "b m"], count: int) -> Int64[Tensor, "b count"]:
    """Each row's first `count` numbers that did not occur before: a sample without replacement from one with it."""
    ordered, origin = draws.sort(dim=1, stable=True)
    repeats: Bool[Tensor, "b m"] = torch.zeros_like(draws, dtype=torch.bool)
    repeats[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    late = torch.empty_like(repeats).scatter(1, origin, repeats)
    return draws.gather(1, late.byte().argsort(dim=1, stable=True)[:, :count])


def _numbers(keys: Int64[Tensor, "b 1"], count: int) -> Int64[Tensor, "b count"]:
    """Uniform numbers of 63 bits: the first `count` of splitmix64 (Steele et al. 2014) from each key."""
    return _mixed(keys + _GAMMA * torch.arange(1, count + 1, device=keys.device)) & 2**63 - 1


def _mixed(words: Int64[Tensor, "*axes"]) -> Int64[Tensor, "*axes"]:
    """A one-to-one map of 64 bits in which every bit depends on every other."""
    words = (words ^ _shifted(words, 30)) * _FACTORS[0]
    words = (words ^ _shifted(words, 27)) * _FACTORS[1]
    return words ^ _shifted(words, 31)


def _shifted(words: Int64[Tensor, "*axes"], bits: int) -> Int64[Tensor, "*axes"]:
    """Shifted to the right with zeros coming in, where `>>` would bring in the sign."""
    return (words >> bits) & 2 ** (64 - bits) - 1
