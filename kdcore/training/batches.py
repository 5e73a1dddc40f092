"""The part of each optimiser step's batch that one process computes at a time.

The step's rows are drawn first and cut into micro-batches and ranks afterwards, so that neither changes what a
step learns from. Every part knows how many examples the whole step has: losses are divided by that number.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from kdcore.data.batching import Examples, LengthGroupedBatches


class Share(NamedTuple):
    """Rows of one micro-batch on one rank, and the number of examples of the whole step."""

    rows: list[int]
    step_examples: int


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
        for _ in range(self.batches.steps):
            step = [next(pieces) for _ in range(self.batches.pieces)]
            examples = sum(map(len, step))
            for rows in step[self.rank::self.world]:
                yield Share(rows, examples)


class ShareOfExamples(Dataset[dict[str, Any]]):
    """`Examples` asked for a `Share`; adds `step_examples` to the batch."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.examples[row]

    def __getitems__(self, share: Share) -> dict[str, Any]:
        return self.examples.__getitems__(share.rows) | {"step_examples": share.step_examples}


def loader(dataset: ShareOfExamples, shares: Shares) -> DataLoader:
    """Batches in the order of `shares`. Making one is a vectorised gather, quicker than handing it to a worker.

    The generator of its own keeps the loader from drawing on the global one, which dropout uses.
    """
    return DataLoader(dataset, batch_sampler=shares, collate_fn=_finished, generator=torch.Generator())


def _finished(batch: Any) -> Any:
    """`DataLoader` would collate what `Examples` returns, but that is a batch already."""
    return batch
