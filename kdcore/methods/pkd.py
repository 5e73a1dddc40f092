"""PKD: each intermediate layer of the student learns from one of the teacher, by the direction of its CLS state.

Sun, Cheng, Gan and Liu, EMNLP 2019, "Patient Knowledge Distillation for BERT Model Compression", section 3:
  L = (1 - alpha) CE + alpha T^2 KL + beta sum_j || unit(h_S,j) - unit(h_T,g(j)) ||^2
over student layers j = 1..m-1; the last layers are never matched. g is PKD-skip (every n/m-th teacher layer) or
PKD-last (the m-1 below the last). The KL divergence is `vanilla_kd`'s.

Deviations from the paper: losses are averaged over examples. `reduction: mean` (the default) divides the last term
by layers and width, which the released code does and the published beta (10, 100, 500, 1000) are chosen for;
`sum` is the paper's formula and wants beta / ((m-1) d). Where widths differ, which the paper does not treat, both
sides go through a linear map into a common space, as RAIL-KD's comparison has it for ALP-KD. Extensions: the map
`even` for depths that do not divide, pairs of one's own, the token mean in place of CLS.
With both sides mapped the loss has a trivial optimum, all vectors alike; `collapse` and `spread` watch for it.
Released code (intersun/PKD-for-BERT-Model-Compression) also averages the KL over classes and returns the last term
in half precision.
"""

from typing import Literal

from pydantic import Field

from kdcore.features import LOGITS, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, squared_distance, unit
from kdcore.mapping import Pairs, Rule, fixed
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import COLLAPSE_ALARMS, Bridge, initialised_from


class Config(MethodConfig):
    """Defaults are those of the released code; its grid: T in 5, 10, 20 and alpha in 0.2, 0.5, 0.7."""

    alpha: float = Field(default=0.7, ge=0, le=1)
    """Weight of the KD term; the label loss weighs 1 - alpha."""
    beta: float = Field(default=500.0, ge=0)
    """Weight of the layers' term; what it means depends on `reduction`."""
    temperature: float = Field(default=10.0, gt=0)
    mapping: Rule | Pairs = "skip"
    """`skip`, `last`, `even`, or pairs [student layer, teacher layer]."""
    reduction: Literal["mean", "sum"] = "mean"
    """Over layers and width."""
    normalise: bool = True
    """False compares the states themselves, not their directions."""
    pooling: Literal["cls", "mean"] = "cls"
    """What stands for a layer: the state of token 0, or the mean over real tokens."""
    width: int | None = Field(default=128, ge=1)
    """Of the common space where the widths of the models differ; None maps the student to the teacher's width."""
    bias: bool = True
    freeze_teacher_projection: bool = False
    """True keeps the teacher's map as initialised, which rules the trivial optimum out."""


class Pkd(Objective):
    """Label loss, KD loss and the distance of matched layers."""

    alarms = COLLAPSE_ALARMS

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": 1 - config.alpha, "kd": config.alpha, "pkd": config.beta}
        pairs = fixed(config.mapping, setting.teacher.layers, setting.student.layers)
        self.student_keys = layer_keys(config.pooling, [student for student, _ in pairs])
        self.teacher_keys = layer_keys(config.pooling, [teacher for _, teacher in pairs])
        with initialised_from(setting.seed):
            self.bridge = Bridge(setting.student.width, setting.teacher.width, config.width, config.bias,
                                 config.freeze_teacher_projection)
        self.normalise = config.normalise
        self.scale = 1.0 if config.reduction == "sum" else 1 / (len(pairs) * self.bridge.width)
        self.needs = Needs(student=frozenset({LOGITS, *self.student_keys}),
                           teacher=frozenset({LOGITS, *self.teacher_keys}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        ours, theirs = self.bridge(student.stack(self.student_keys), teacher.stack(self.teacher_keys))
        if self.normalise:
            ours, theirs = unit(ours), unit(theirs)
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "pkd": self.scale * squared_distance(ours, theirs).sum(dim=1),
        }
        return Loss(parts, self.weights, self.bridge.watch(theirs))


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths and the mapping do not fit together."""
    return (Phase("distill", Pkd(config, setting)),)
