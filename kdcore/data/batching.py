"""Batches: which rows share one, in which order, and how they become tensors.

Rows of similar length share a batch, so that little is padding, while the order stays random. `LengthGroupedBatches`
is a function of (lengths, batch size, seed, epoch) alone: equal on every rank and after every resume.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from kdcore.data.prepared import Prepared
from kdcore.data.tokens import TokenTable
from kdcore.errors import UserError

__all__ = ["Examples", "LengthGroupedBatches", "TokenTable", "collate", "padding_share", "sorted_batches"]

MEGA_BATCHES = 50
"""Rows are sorted by length inside random groups of this many batches: larger pads less, smaller mixes more."""


class Examples(Dataset[dict[str, Any]]):
    """One split as batches. Asked for a list of rows, it returns a finished batch:

    ids [b] int64; labels [b]; student: dict of [b, t]; teacher: the same under the teacher's tokenizer, only if asked
    for, and the very same tensors where the tokenizers agree.
    """

    def __init__(self, prepared: Prepared, split: str, teacher_inputs: bool, multiple_of: int = 1,
                 reads: Literal["student", "teacher"] = "student", only_labelled: bool = False) -> None:
        """`reads` says whose tokens the model in training reads; `teacher` needs `teacher_inputs`. `only_labelled`
        leaves out the rows without labels, which come last."""
        self.labels = prepared.labels(split)
        if only_labelled:
            self.labels = self.labels[:prepared.split(split).labelled]
        self.student_tokens = prepared.tokens(split, "student")
        self.teacher_tokens: TokenTable | None = None
        if teacher_inputs:
            self.teacher_tokens = (self.student_tokens if prepared.same_tokenizer
                                   else prepared.tokens(split, "teacher"))
        self.multiple_of = multiple_of
        self.reads = reads

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row as the model in training reads it: int64 [n]."""
        tokens = self.teacher_tokens if self.reads == "teacher" else self.student_tokens
        assert tokens is not None
        return tokens.lengths[:len(self)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        """The rows as one batch; `DataLoader` calls this with what the batch sampler drew."""
        ids = torch.as_tensor(rows, dtype=torch.int64)
        batch: dict[str, Any] = {"ids": ids, "labels": self.labels[ids],
                                 "student": self.student_tokens.pad(ids, self.multiple_of)}
        if self.teacher_tokens is self.student_tokens:
            batch["teacher"] = batch["student"]
        elif self.teacher_tokens is not None:
            batch["teacher"] = self.teacher_tokens.pad(ids, self.multiple_of)
        return batch


def collate(batch: Any) -> Any:
    """`DataLoader`'s collate function: what `Examples` and corpora return is a batch already."""
    return batch


class LengthGroupedBatches(Sampler[list[int]]):
    """Every row but those `left_out` once per epoch, in random batches of rows of similar length.

    There are ceil(n / batch_size) batches whose sizes differ by at most one, so that no epoch ends in a tiny batch
    that weighs as much as a full one. With `pieces` (micro-batches, or ranks, or both) each batch is cut into that
    many consecutive parts, yielded one after another: the rows of a step do not depend on how it is cut.
    Call `set_epoch` before each epoch.
    """

    def __init__(self, lengths: np.ndarray | Tensor, batch_size: int, seed: int, pieces: int = 1,
                 epoch: int = 0, left_out: Sequence[int] | np.ndarray = ()) -> None:
        self.lengths = np.asarray(lengths)
        self.rows = np.delete(np.arange(len(self.lengths)), np.asarray(left_out, dtype=np.int64))
        steps = -(-len(self.rows) // batch_size)
        if not 1 <= pieces <= len(self.rows) // max(steps, 1):
            raise UserError(f"{len(self.rows)} rows in batches of {batch_size} cannot be cut into {pieces} pieces "
                            f"(accumulation x devices) each; lower `accumulation` or raise `batch_size`")
        self.steps = steps
        self.batch_size = batch_size
        self.pieces = pieces
        self.seed = seed
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; it counts from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps * self.pieces

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed % 2**32, self.epoch])
        order = self.rows[generator.permutation(len(self.rows))]
        groups = []
        for number, start in enumerate(range(0, len(order), MEGA_BATCHES * self.batch_size)):
            group = order[start:start + MEGA_BATCHES * self.batch_size]
            group = group[np.argsort(self.lengths[group], kind="stable")]
            # Every other group runs backwards, so a batch that spans two groups holds neighbours in length too.
            groups.append(group[::-1] if number % 2 else group)
        batches = np.array_split(np.concatenate(groups), self.steps)
        for position in generator.permutation(self.steps):
            for piece in np.array_split(batches[position], self.pieces):
                yield piece.tolist()


def sorted_batches(lengths: np.ndarray, batch_size: int) -> list[list[int]]:
    """All rows in batches from longest to shortest: least padding, and memory runs out at once or never."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return [order[start:start + batch_size].tolist() for start in range(0, len(order), batch_size)]


def padding_share(lengths: np.ndarray, batches: Sequence[Sequence[int]]) -> float:
    """Padding as a share of all tokens that a model computes for these batches."""
    computed = sum(len(rows) * int(lengths[list(rows)].max()) for rows in batches)
    return 1 - sum(int(lengths[list(rows)].sum()) for rows in batches) / computed
