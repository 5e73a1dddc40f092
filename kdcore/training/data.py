"""What a training needs of its data: rows as batches, and what there is beside them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from kdcore.objective import Masked, Standing
from kdcore.training.precision import Precision


class Share(NamedTuple):
    """Some rows of an optimiser step, which follow each other there.

    rows   those of one micro-batch on one rank
    whole  those of the whole step, over micro-batches and ranks
    first  the place of `rows[0]` in `whole`
    epoch, step  which step it is: of which epoch, and which of that epoch's, from 0
    """

    rows: list[int]
    whole: list[int]
    first: int
    epoch: int
    step: int


class Rows(Protocol):
    """The rows of a training; ids are 0..n-1."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row as the model in training reads it: int64 [n]."""

    def __len__(self) -> int: ...

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        """A batch: ids [b] int64, labels [b], `student` and, where asked for, `teacher`: dicts of [b, t]."""


class Masking(Protocol):
    """Hides tokens for language modelling, of each row as many as its length says."""

    def counts(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens of rows of these lengths it hides: int64 [n]."""

    def __call__(self, inputs: Mapping[str, Tensor], place: Share,
                 lengths: np.ndarray) -> tuple[dict[str, Tensor], Masked]:
        """Inputs [b, t] of the rows of a share with tokens hidden, and which; `lengths` are those of the whole step.

        Draws depend on the step and on a row's place in it, not on how the step is cut.
        """


class Judge(Protocol):
    """The development rows. In distributed training every rank asks, and all get the same answer."""

    def evaluate(self, student: PreTrainedModel) -> tuple[dict[str, Any], float]:
        """The metrics on the selection split and the score that selects; higher is better."""

    def examine(self, student: PreTrainedModel, held_back: int) -> Standing:
        """Loss and score, see `kdcore.objective.Examine`, for an objective that holds so many rows back."""


class Data(Protocol):
    """What a training is of: a dataset or a corpus.

    longest  tokens of its longest text at most
    tokens   whose token ids of a batch the model in training reads
    """

    @property
    def longest(self) -> int: ...

    @property
    def tokens(self) -> Literal["student", "teacher"]: ...

    def rows(self, teacher_inputs: bool) -> Rows:
        """What is trained on, with the teacher's token ids if objectives read a teacher."""

    def held_back(self, rows: int) -> np.ndarray:
        """The ids of the rows that an objective holds back, of which it wants so many: int64 [n], in order."""

    def development(self, precision: Precision, batch_size: int) -> Judge | None:
        """What selects; None where nothing can, so that the last weights are kept."""

    def masker(self, seed: int) -> Masking:
        """What hides tokens for objectives that ask for it; raises ValueError where nothing does."""
