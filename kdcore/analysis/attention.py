"""How much the layers of a trained student attend to those of its teacher, on average over the training set.

Passban et al. 2021 (ALP-KD), figure 3.
"""

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from kdcore.data.batching import Examples, sorted_batches
from kdcore.data.prepared import Prepared
from kdcore.features import LOGITS, Features
from kdcore.models.reading import read
from kdcore.objective import Needs
from kdcore.progress import RowProgress
from kdcore.teacher import Teacher

BATCH_SIZE = 64


class Attends(Protocol):
    """An objective that weighs teacher layers per example."""

    needs: Needs

    def attention(self, student: Features, teacher: Features) -> Float[Tensor, "b k n"]:
        """The weights; they sum to 1 over the n teacher layers."""


def mean_attention(objective: Attends, student: PreTrainedModel, teacher: Teacher, prepared: Prepared,
                   title: str) -> Float[Tensor, "k n"]:
    """The weights averaged over all training examples, both models in eval mode.

    The teacher's features come from its store as far as they are there. `title` names the pass in its progress.
    """
    examples = Examples(prepared, prepared.info.train, teacher_inputs=True)
    ours, theirs = objective.needs.student - {LOGITS}, objective.needs.teacher - {LOGITS}
    total: Tensor | float = 0.0
    student.eval()
    with torch.inference_mode(), RowProgress(title, len(examples)) as progress:
        for rows in sorted_batches(examples.lengths, BATCH_SIZE):
            batch = examples.__getitems__(rows)
            inputs = {name: values.to(student.device) for name, values in batch["student"].items()}
            weights = objective.attention(read(student, inputs, ours), teacher.features(batch, theirs))
            total = total + weights.double().sum(dim=0)
            progress.advance(len(rows))
    assert isinstance(total, Tensor)
    return total.cpu() / len(examples)
