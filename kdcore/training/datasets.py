"""A prepared dataset as something to train on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kdcore.data.batching import Examples
from kdcore.data.prepared import Prepared
from kdcore.training.data import Masking
from kdcore.training.development import Development, held_back_rows
from kdcore.training.precision import Precision


@dataclass(frozen=True)
class OfDataset:
    """A prepared dataset. `tokens` is `teacher` when a teacher is trained."""

    prepared: Prepared
    tokens: Literal["student", "teacher"] = "student"

    @property
    def longest(self) -> int:
        """Longer texts were cut."""
        return self.prepared.info.max_length

    def rows(self, teacher_inputs: bool) -> Examples:
        """The training split. Rows without labels have nothing to teach where no teacher answers them."""
        return Examples(self.prepared, self.prepared.info.train, teacher_inputs or self.tokens == "teacher",
                        reads=self.tokens, only_labelled=not teacher_inputs)

    def held_back(self, rows: int) -> np.ndarray:
        """Of the training rows with a label."""
        return held_back_rows(self.prepared, rows).numpy()

    def development(self, precision: Precision, batch_size: int) -> Development:
        """The selection split and the rows that are held back."""
        return Development(self.prepared, precision, batch_size, self.tokens)

    def masker(self, seed: int) -> Masking:
        """Raises ValueError: datasets are read as they are."""
        raise ValueError(f"dataset {self.prepared.info.name} is read as it is: tokens are masked in corpora only")
