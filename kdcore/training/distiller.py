"""Student and objective as one module, so that both are optimised, clipped, saved and synchronised together."""

from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from kdcore.features import Features
from kdcore.models.reading import read
from kdcore.objective import Batch, Loss, Masked, Objective, Progress
from kdcore.training.precision import Precision


class Distiller(nn.Module):
    """What is trained. The teacher is never a part of it: its features come as an argument.

    So `train()` cannot switch the teacher's dropout on, no optimiser or checkpoint sees its weights, and
    data-parallel training wraps only what learns.
    """

    def __init__(self, student: PreTrainedModel, objective: Objective, precision: Precision,
                 tokens: Literal["student", "teacher"] = "student") -> None:
        """`tokens` says whose token ids of the batch the student reads: its own, except when a teacher is trained."""
        super().__init__()
        self.student = student
        self.objective = objective
        self.precision = precision
        self.tokens = tokens

    def forward(self, batch: dict[str, Any], teacher: Features, progress: Progress) -> Loss:
        """Loss per example [b], in float32; `batch` as made by `Parts`, on the student's device (`step` anywhere)."""
        needs = self.objective.needs_at(progress).student
        masked = Masked(**batch["masked"]) if "masked" in batch else None
        with self.precision.autocast():
            features = read(self.student, batch[self.tokens], needs)
        with self.precision.losses():
            wide = Features({key: value.float() for key, value in features.items()}, features.mask)
            known = Batch(batch["ids"], batch["labels"], batch.get("step"), masked)
            return self.objective(wide, teacher, known, progress)
