"""ALP-KD: each intermediate layer of the student learns from all of the teacher, weighted by attention.

Passban, Wu, Rezagholizadeh and Liu, AAAI 2021, "ALP-KD: Attention-Based Layer Projection for Knowledge
Distillation". With CLS states h, student layers j = 1..m-1 and teacher layers i = 1..n-1:
  e_j,i = softmax over i of <h_S,j, h_T,i>,   c_j = sum_i e_j,i h_T,i,
  A = sum_j mean over the width of (h_S,j - c_j)^2,
  L = beta CE + eta T^2 KL + lambda A,   beta + eta + lambda = 1
Gradients reach the student through the weights too; nothing else is learned when widths agree. The variants ALP-NO
and ALP-PO let a student layer look at one block of teacher layers only, without and with overlap.

Deviations from the paper: losses are averaged over examples. Where widths differ both sides are mapped linearly into
a common space, one map per side for all layers, in which attention and error are computed (RAIL-KD's comparison
names such a map without its details). Extensions: scores divided by sqrt(d), the mean over student layers, the last
layers included, the token mean in place of CLS.
With both sides mapped the loss has a trivial optimum, all vectors alike; `collapse` and `spread` watch for it.
No code of the authors is public; the third-party GLMKD matches student layers 1..m with teacher layers 1..n.
"""

from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, layer_attention, layer_mixture, squared_distance
from kdcore.mapping import blocks
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import COLLAPSE_ALARMS, Bridge, initialised_from


class Config(MethodConfig):
    """Defaults are GLMKD's; the usual grid: eta and lambda in 0, 0.2, 0.5, 0.7, T in 5, 10, 20."""

    kd_weight: float = Field(default=0.7, ge=0, le=1)
    """eta; the label loss weighs beta = 1 - eta - lambda"""
    alp_weight: float = Field(default=0.2, ge=0, le=1)
    """lambda"""
    temperature: float = Field(default=20.0, gt=0)
    attends: Literal["all", "block", "overlap"] = "all"
    """Which teacher layers a student layer looks at: all, its block (ALP-NO), or its block and one layer on
    each side of it (ALP-PO)."""
    scaled: bool = False
    """True divides the scores by the square root of the width."""
    reduction: Literal["sum", "mean"] = "sum"
    """Over student layers; over the width it is always the mean."""
    last_layers: bool = False
    """True takes student layers 1..m and teacher layers 1..n."""
    pooling: Literal["cls", "mean"] = "cls"
    """What stands for a layer: the state of token 0, or the mean over real tokens."""
    width: int | None = Field(default=128, ge=1)
    """Of the common space where the widths of the models differ; None maps the student to the teacher's width."""
    bias: bool = True
    freeze_teacher_projection: bool = False
    """True keeps the teacher's map as initialised, which rules the trivial optimum out."""

    @model_validator(mode="after")
    def _weights_are_shares(self) -> Self:
        if self.kd_weight + self.alp_weight > 1:
            raise ValueError(f"kd_weight {self.kd_weight} and alp_weight {self.alp_weight} sum to more than 1; lower "
                             "one: the label loss weighs what they leave")
        return self


class AlpKd(Objective):
    """Label loss, KD loss and the distance of each student layer from its mixture of teacher layers."""

    alarms = COLLAPSE_ALARMS
    allowed: Tensor | None

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": 1 - (config.kd_weight + config.alp_weight), "kd": config.kd_weight,
                        "alp": config.alp_weight}
        last = int(config.last_layers)
        self.student_layers = tuple(range(1, setting.student.layers + last))
        self.teacher_layers = tuple(range(1, setting.teacher.layers + last))
        if not (self.student_layers and self.teacher_layers):
            raise UserError(f"methods.alp_kd: a teacher of {setting.teacher.layers} and a student of "
                            f"{setting.student.layers} layer(s) have no intermediate layers on both sides; use deeper "
                            "models, or `last_layers: true`")
        self.student_keys = layer_keys(config.pooling, self.student_layers)
        self.teacher_keys = layer_keys(config.pooling, self.teacher_layers)
        with initialised_from(setting.seed):
            self.bridge = Bridge(setting.student.width, setting.teacher.width, config.width, config.bias,
                                 config.freeze_teacher_projection)
        self.scale = self.bridge.width**-0.5 if config.scaled else 1.0
        self.share = 1.0 if config.reduction == "sum" else 1 / len(self.student_layers)
        self.register_buffer("allowed", self._allowed(config.attends), persistent=False)
        self.needs = Needs(student=frozenset({LOGITS, *self.student_keys}),
                           teacher=frozenset({LOGITS, *self.teacher_keys}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        ours, theirs = self._states(student, teacher)
        mixed = layer_mixture(layer_attention(ours, theirs, self.scale, self.allowed), theirs)
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "alp": self.share * squared_distance(ours, mixed).sum(dim=1) / self.bridge.width,
        }
        return Loss(parts, self.weights, self.bridge.watch(theirs))

    def attention(self, student: Features, teacher: Features) -> Float[Tensor, "b k n"]:
        """The weights of `teacher_layers` for `student_layers`, per example, from the features in `needs`."""
        return layer_attention(*self._states(student, teacher), self.scale, self.allowed)

    def _states(
        self, student: Features, teacher: Features
    ) -> tuple[Float[Tensor, "b k width"], Float[Tensor, "b n width"]]:
        return self.bridge(student.stack(self.student_keys), teacher.stack(self.teacher_keys))

    def _allowed(self, attends: Literal["all", "block", "overlap"]) -> Tensor | None:
        if attends == "all":
            return None
        seen = blocks(self.teacher_layers, len(self.student_layers), widened=attends == "overlap")
        return torch.tensor([[layer in block for layer in self.teacher_layers] for block in seen])


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths do not fit together."""
    return (Phase("distill", AlpKd(config, setting)),)
