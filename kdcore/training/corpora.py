"""A corpus as something to train on: rows without labels, tokens masked on the fly, nothing that selects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from kdcore import general_config
from kdcore.data.corpus import Corpus
from kdcore.data.masking import Masker
from kdcore.training.precision import Precision


class CorpusRows:
    """All rows of a corpus. Teacher and student read the same tokens."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row: int64 [n]."""
        return self.corpus.lengths

    def __len__(self) -> int:
        return len(self.corpus)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Any]:
        """A batch: ids [b] int64; labels [b], all -1; `student` and `teacher`, the very same inputs [b, t]."""
        ids = torch.as_tensor(rows, dtype=torch.int64)
        inputs = self.corpus.tokens(ids)
        return {"ids": ids, "labels": torch.full_like(ids, -1), "student": inputs, "teacher": inputs}


@dataclass(frozen=True)
class OfCorpus:
    """A corpus and how its tokens are masked for objectives that ask for it."""

    corpus: Corpus
    masking: general_config.Masking
    tokens: Literal["student", "teacher"] = "student"

    @property
    def longest(self) -> int:
        """The corpus was cut so."""
        return self.corpus.info.max_length

    def rows(self, teacher_inputs: bool) -> CorpusRows:
        """All of them."""
        return CorpusRows(self.corpus)

    def held_back(self, rows: int) -> np.ndarray:
        """None; raises ValueError when some are wanted, since no row has a label to be examined by."""
        if rows:
            raise ValueError(f"an objective holds {rows} labelled rows back, but a corpus has none")
        return np.empty(0, dtype=np.int64)

    def development(self, precision: Precision, batch_size: int) -> None:
        """Nothing: a corpus has no split that selects."""

    def masker(self, seed: int) -> Masker:
        """Raises UserError when the tokenizer has no mask token."""
        return Masker.of(self.corpus, self.masking, seed)
