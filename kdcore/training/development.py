"""How good the student is on the split that selects: all rows at once, logits only."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from transformers import PreTrainedModel

from kdcore.data.prepared import Prepared
from kdcore.evaluation.metrics import score, selection_score
from kdcore.evaluation.predict import predict
from kdcore.losses import label_loss
from kdcore.training.precision import Precision

T = TypeVar("T")


class Development:
    """The selection split. In distributed training the first rank computes and the others are told."""

    def __init__(self, prepared: Prepared, precision: Precision, batch_size: int,
                 tokens: Literal["student", "teacher"] = "student") -> None:
        self.prepared = prepared
        self.precision = precision
        self.batch_size = batch_size
        self.tokens = tokens

    def evaluate(self, student: PreTrainedModel) -> tuple[dict[str, Any], float]:
        """The dataset's metrics and the score that selects; higher is better."""
        def compute() -> tuple[dict[str, Any], float]:
            metrics = score(self.prepared, self.prepared.info.select, self._logits(student))
            return metrics, selection_score(metrics, self.prepared.info)
        return _on_first_rank(compute)

    def loss(self, student: PreTrainedModel) -> float:
        """Mean label loss in eval mode."""
        def compute() -> float:
            labels = self.prepared.labels(self.prepared.info.select)
            return label_loss(self._logits(student), labels, self.prepared.info.regression).double().mean().item()
        return _on_first_rank(compute)

    def _logits(self, student: PreTrainedModel) -> torch.Tensor:
        with self.precision.autocast():
            return predict(student, self.prepared, self.prepared.info.select, self.batch_size, self.tokens)


def _on_first_rank(compute: Callable[[], T]) -> T:
    if not torch.distributed.is_initialized():
        return compute()
    told: list[Any] = [compute() if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(told)
    return told[0]
