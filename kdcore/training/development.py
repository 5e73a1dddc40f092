"""How good the student is on the split that selects: all or some rows at once, logits only."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Int
from transformers import PreTrainedModel

from kdcore.data.prepared import Prepared
from kdcore.evaluation.metrics import score, selection_score
from kdcore.evaluation.predict import predict
from kdcore.losses import label_loss
from kdcore.objective import Standing
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

    def examine(self, student: PreTrainedModel, rows: int | None = None) -> Standing:
        """Loss and score, of some of its rows where asked for: the same ones for every method and seed."""
        info = self.prepared.info

        def compute() -> Standing:
            part = self._part(rows)
            logits, labels = self._logits(student, part), self.prepared.labels(info.select)
            loss = label_loss(logits, labels if part is None else labels[part], info.regression).double().mean().item()
            metrics = score(self.prepared, info.select, logits, part=part)
            return Standing(loss, selection_score(metrics, info), {name: metrics[name] for name in info.metrics})
        return _on_first_rank(compute)

    def _part(self, rows: int | None) -> Int[torch.Tensor, " rows"] | None:
        """Some rows in their order, drawn once and for all; None for all."""
        there = self.prepared.split(self.prepared.info.select).rows
        if rows is None or rows >= there:
            return None
        return torch.randperm(there, generator=torch.Generator().manual_seed(0))[:rows].sort().values

    def _logits(self, student: PreTrainedModel, part: torch.Tensor | None = None) -> torch.Tensor:
        with self.precision.autocast():
            return predict(student, self.prepared, self.prepared.info.select, self.batch_size, self.tokens, part)


def _on_first_rank(compute: Callable[[], T]) -> T:
    if not torch.distributed.is_initialized():
        return compute()
    told: list[Any] = [compute() if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(told)
    return told[0]
