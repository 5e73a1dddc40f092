"""How good the student is on development rows: the selection split, or training rows that an objective holds back.

Logits only, all rows at once.
"""

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
    """The rows. In distributed training the first rank computes and the others are told."""

    def __init__(self, prepared: Prepared, precision: Precision, batch_size: int,
                 tokens: Literal["student", "teacher"] = "student") -> None:
        self.prepared = prepared
        self.precision = precision
        self.batch_size = batch_size
        self.tokens = tokens

    def evaluate(self, student: PreTrainedModel) -> tuple[dict[str, Any], float]:
        """The dataset's metrics on the selection split and the score that selects; higher is better."""
        def compute() -> tuple[dict[str, Any], float]:
            info = self.prepared.info
            metrics = score(self.prepared, info.select, self._logits(student, info.select))
            return metrics, selection_score(metrics, info)
        return _on_first_rank(compute)

    def examine(self, student: PreTrainedModel, held_back: int = 0) -> Standing:
        """Loss and score on the rows that an objective holds back, or on the selection split where that is none."""
        info = self.prepared.info

        def compute() -> Standing:
            split, part = (info.train, held_back_rows(self.prepared, held_back)) if held_back else (info.select, None)
            logits, labels = self._logits(student, split, part), self.prepared.labels(split)
            loss = label_loss(logits, labels if part is None else labels[part], info.regression).double().mean().item()
            metrics = score(self.prepared, split, logits, part=part)
            return Standing(loss, selection_score(metrics, info), {name: metrics[name] for name in info.metrics})
        return _on_first_rank(compute)

    def _logits(self, student: PreTrainedModel, split: str, part: torch.Tensor | None = None) -> torch.Tensor:
        with self.precision.autocast():
            return predict(student, self.prepared, split, self.batch_size, self.tokens, part)


def held_back_rows(prepared: Prepared, rows: int) -> Int[torch.Tensor, " rows"]:
    """The training rows, in order, that an objective which wants so many holds back: of those with a label, a quarter
    at most, the same ones for every method and seed."""
    labelled = prepared.split(prepared.info.train).labelled
    drawn = torch.randperm(labelled, generator=torch.Generator().manual_seed(0))
    return drawn[:min(rows, labelled // 4)].sort().values


def _on_first_rank(compute: Callable[[], T]) -> T:
    if not torch.distributed.is_initialized():
        return compute()
    told: list[Any] = [compute() if torch.distributed.get_rank() == 0 else None]
    torch.distributed.broadcast_object_list(told)
    return told[0]
