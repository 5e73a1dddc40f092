"""A vector per training example that outlives the step it was computed in, and how a step's vectors come together.

A bank is a buffer: saved in checkpoints, moved with the objective, no part of the student. In distributed training each
rank computes the vectors of its own examples; all ranks write those of all, so that their banks stay equal.
"""

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from kdcore.losses import unit


class MemoryBank(nn.Module):
    """Unit vectors by example id; constants for every gradient.

    An id out of range is an IndexError on the CPU and a device-side assertion on CUDA.
    """

    rows: Tensor

    def __init__(self, examples: int, width: int, generator: torch.Generator) -> None:
        """Rows [examples, width] start in random directions."""
        super().__init__()
        self.register_buffer("rows", unit(2 * torch.rand(examples, width, generator=generator) - 1))

    def forward(self, ids: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes width"]:
        """A copy of these rows."""
        return F.embedding(ids, self.rows)

    @torch.no_grad()
    def update(self, ids: Int[Tensor, " n"], vectors: Float[Tensor, "n width"], momentum: float) -> None:
        """Each row becomes unit(momentum row + (1 - momentum) vector); 0 replaces it. Equal ids bring equal vectors."""
        self.rows.index_copy_(0, ids, unit(momentum * self(ids) + (1 - momentum) * vectors))


class StepRows:
    """Vectors of one optimiser step's examples, collected over its micro-batches and ranks.

    What a step has added counts for nothing when the next step comes: it was not applied.
    """

    def __init__(self, most: int) -> None:
        """`most` is the largest number of examples of a step."""
        self.most = most
        self._step = -1
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, step: int, ids: Int64[Tensor, " b"], vectors: Float[Tensor, "b width"]) -> None:
        """Keep the vectors of a micro-batch, without their gradient."""
        if step != self._step:
            self._step, self._parts = step, []
        self._parts.append((ids, vectors.detach()))

    def take(self) -> tuple[Int64[Tensor, " n"], Float[Tensor, "n width"], Bool[Tensor, " n"]]:
        """Ids and vectors of all ranks, in one order on all; then nothing is kept.

        A rank with fewer than `most` examples repeats its last one, since ranks exchange equal numbers; the third
        result is False there. Writing a row twice does no harm, and none has to wait for the others' numbers.
        """
        ids, vectors = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        self._parts = []
        if not torch.distributed.is_initialized():
            return ids, vectors, torch.ones_like(ids, dtype=torch.bool)
        place = torch.arange(self.most, device=ids.device)
        own, last = place < len(ids), place.clamp_max(len(ids) - 1)
        return _of_all_ranks(ids[last]), _of_all_ranks(vectors[last]), _of_all_ranks(own)


def _of_all_ranks(part: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, part)
    return torch.cat(parts)
