"""Vanilla KD: the student learns the teacher's softened outputs beside the labels.

Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network", section 2:
(1 - alpha) CE + alpha T^2 KL(softmax(z_T / T) || softmax(z_S / T)), summed over classes.

Deviations from the paper: the KL divergence in place of the soft cross-entropy, which differs by the
teacher's entropy, a constant. Regression, which the paper does not treat, takes the squared difference
of the outputs and ignores T.
Released code differs: PKD averages the KL over classes as well, so its alpha is ours with the KD term
divided by the number of classes; TextBrewer leaves T^2 out, which is `squared_temperature: false` here.
"""

from pydantic import Field

from kdcore.features import LOGITS, Features
from kdcore.losses import kd_loss, label_loss
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(MethodConfig):
    """Defaults: T = 1 as in KD-NLP, the released code of RAIL-KD's group, and equal weights (our choice).

    Other published settings: T in 5, 10, 20 and alpha in 0.2, 0.5, 0.7 (PKD's grid).
    """

    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of the KD term; the label loss weighs 1 - alpha."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    squared_temperature: bool = True
    """False leaves out the factor T^2 that keeps the size of the gradient over temperatures."""


class VanillaKd(Objective):
    """Label loss and KD loss."""

    def __init__(self, config: Config, regression: bool) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = regression
        scale = 1.0 if config.squared_temperature or regression else config.temperature**-2
        self.weights = {"label": 1 - config.alpha, "kd": config.alpha * scale}
        self.needs = Needs(student=frozenset({LOGITS}), teacher=frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        label = label_loss(student.logits, batch.labels, self.regression)
        kd = kd_loss(student.logits, teacher.logits, self.temperature, self.regression)
        return Loss({"label": label, "kd": kd}, self.weights)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase."""
    return (Phase("distill", VanillaKd(config, setting.regression)),)
