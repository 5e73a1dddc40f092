"""The part of each optimiser step's batch that one process computes at a time.

The step's rows are drawn first and cut into micro-batches and ranks afterwards, so that neither changes what a
step learns from. Every part knows the whole step: losses are divided by the number of its examples, and tokens are
masked as they would be in one piece.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from kdcore.data.batching import LengthGroupedBatches, collate
from kdcore.objective import Step
from kdcore.training.data import Masking, Rows, Share


class Shares(Sampler[Any]):
    """One rank's micro-batches of every step of an epoch."""

    def __init__(self, batches: LengthGroupedBatches, rank: int = 0, world: int = 1) -> None:
        if batches.pieces % world:
            raise ValueError(f"{batches.pieces} pieces per step cannot be dealt to {world} ranks")
        self.batches = batches
        self.rank = rank
        self.world = world

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; it counts from 0."""
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.batches) // self.world

    def __iter__(self) -> Iterator[Share]:
        pieces = iter(self.batches)
        for number in range(self.batches.steps):
            step = [next(pieces) for _ in range(self.batches.pieces)]
            whole = [row for rows in step for row in rows]
            first = 0
            for place, rows in enumerate(step):
                if place % self.world == self.rank:
                    yield Share(rows, whole, first, self.batches.epoch, number)
                first += len(rows)


class Parts(Dataset[dict[str, Any]]):
    """Rows asked for a `Share`. Adds to the batch `step`, and with `masking` the positions [b, p] and targets [b, p]
    in `masked`; both models then read the same masked tokens."""

    def __init__(self, rows: Rows, masking: Masking | None = None) -> None:
        self.rows = rows
        self.masking = masking

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, share: Share) -> dict[str, Any]:
        batch = self.rows.__getitems__(share.rows)
        lengths = self.rows.lengths[share.whole]
        counts = np.zeros_like(lengths)
        if self.masking is not None:
            counts = self.masking.counts(lengths)
            inputs, masked = self.masking(batch["student"], share, lengths)
            batch |= {"student": inputs, "teacher": inputs,
                      "masked": {"positions": masked.positions, "targets": masked.targets}}
        return batch | {"step": Step(torch.from_numpy(lengths), torch.from_numpy(counts))}


def loader(dataset: Parts, shares: Shares) -> DataLoader:
    """Batches in the order of `shares`. Making one is a vectorised gather, quicker than handing it to a worker.

    The generator of its own keeps the loader from drawing on the global one, which dropout uses.
    """
    return DataLoader(dataset, batch_sampler=shares, collate_fn=collate, generator=torch.Generator())
