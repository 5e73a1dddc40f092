"""Fine-tuning without a teacher: the baseline of every comparison, and how teachers are trained.

Cross-entropy on the labels; for regression the squared error on the raw scale of the scores, without
squashing, as released code has it (KD-NLP, Hugging Face). Deviations: none.
"""

from kdcore.features import LOGITS, Features
from kdcore.losses import label_loss
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(MethodConfig):
    """Fine-tuning has no hyper-parameters of its own."""


class FineTuning(Objective):
    """The label loss."""

    def __init__(self, regression: bool) -> None:
        super().__init__()
        self.regression = regression
        self.needs = Needs(student=frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        return Loss({"label": label_loss(student.logits, batch.labels, self.regression)}, {"label": 1.0})


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase."""
    return (Phase("finetune", FineTuning(setting.regression)),)
