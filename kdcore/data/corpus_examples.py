"""Rows of a corpus as batches; `kdcore.data.batching.Examples` is the like of a dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kdcore.data.corpus import Corpus


class CorpusExamples:
    """Asked for a list of rows, it returns a finished batch:

    ids [b] int64; labels [b], all -1; student and teacher: the very same dict of [b, t].
    """

    def __init__(self, corpus: Corpus, multiple_of: int = 1) -> None:
        """`multiple_of` rounds padded lengths up."""
        self.corpus = corpus
        self.multiple_of = multiple_of

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, special tokens included: int64 [n]."""
        return self.corpus.lengths

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        ids = torch.as_tensor(rows, dtype=torch.int64)
        inputs = self.corpus.tokens(ids, self.multiple_of)
        return {"ids": ids, "labels": torch.full_like(ids, -1), "student": inputs, "teacher": inputs}
