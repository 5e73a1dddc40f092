"""CKD: layers of the teacher are combined in groups, and each group teaches one layer of the student.

Wu, Passban, Rezagholizadeh and Liu, EMNLP 2020, "Why Skip If You Can Combine: A Simple Knowledge Distillation
Technique for Intermediate Layers". Layers 1..n form groups G_1..G_m, for student layers 1..m:
  L = (1 - alpha - beta) CE + alpha T^2 KL + beta sum_i D_i
where [.] concatenates, and W_i and b_i are learned, a pair per group:
  teacher_down  D_i = || h_S,i - ([h_T,k for k in G_i] W_i + b_i) ||^2 / width of h_S, h the state of token 0
  student_up    D_i = mean over real tokens of || unit(h_S,i W_i + b_i) - unit([h_T,k for k in G_i]) ||^2

Deviations from the paper: `teacher_down` follows its description, not a formula that was checked; which state it
takes and the mean over the width are our choice. Where the number of groups does not divide the depth, the first
groups have a layer more. `intermediate_only` is ours, after RAIL-KD's account of CKD. Regression, which the paper
does not treat, takes the squared difference of the outputs and ignores T.
Released code differs: it is for translation and has `student_up` alone, summed over tokens and divided by the number
of tokens of the batch, so that a long sentence weighs more than a short one; here all examples weigh the same.
"""

from typing import Literal, Self

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys, masked_mean
from kdcore.losses import kd_loss, label_loss, squared_distance, unit
from kdcore.mapping import Grouping, groups
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import Projection, initialised_from
from kdcore.token_losses import real_states


class Config(MethodConfig):
    """Defaults of weights and temperature are the example in the released code; the rest is named above."""

    alpha: float = Field(default=0.2, ge=0, le=1)
    """Weight of the KD term; the label loss weighs 1 - alpha - beta."""
    beta: float = Field(default=0.7, ge=0, le=1)
    """Weight of the groups' loss."""
    temperature: float = Field(default=1.0, gt=0)
    direction: Literal["teacher_down", "student_up"] = "teacher_down"
    """Which side is mapped to the other's width; `student_up` compares token by token."""
    grouping: Grouping = "regular"
    intermediate_only: bool = False
    """True groups teacher layers 1..n-1, for student layers 1..m-1."""
    pooling: Literal["cls", "mean"] = "cls"
    """The state of a layer under `teacher_down`: that of token 0, or the mean over real tokens."""

    @model_validator(mode="after")
    def _something_is_left_for_the_labels(self) -> Self:
        if self.alpha + self.beta > 1 + 1e-9:
            raise ValueError(f"alpha + beta = {self.alpha + self.beta:g}, expected at most 1, since the label loss "
                             "weighs 1 - alpha - beta")
        return self


class Combined(Objective):
    """Label loss, KD loss and the groups' loss."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": max(1 - config.alpha - config.beta, 0.0), "kd": config.alpha, "ckd": config.beta}
        self.up = config.direction == "student_up"
        taught = _groups(config, setting)
        student, teacher = setting.student.width, setting.teacher.width
        with initialised_from(setting.seed):
            self.maps = nn.ModuleList(
                Projection(student, len(group) * teacher) if self.up
                else Projection(len(group) * teacher, student, normalise=False) for group in taught)
        kind = "hidden" if self.up else config.pooling
        self.student_keys = layer_keys(kind, range(1, len(taught) + 1))
        self.teacher_keys = tuple(layer_keys(kind, group) for group in taught)
        self.needs = Needs(student=frozenset({LOGITS, *self.student_keys}),
                           teacher=frozenset({LOGITS}.union(*self.teacher_keys)))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        distances = []
        for linear, key, group in zip(self.maps, self.student_keys, self.teacher_keys, strict=True):
            combined = torch.cat([teacher[k] for k in group], dim=-1)
            distances.append(_upwards(linear, student[key], combined, _mask(student)) if self.up
                             else _downwards(linear, student[key], combined))
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "ckd": torch.stack(distances).sum(dim=0),
        }
        return Loss(parts, self.weights)


def _downwards(
    linear: nn.Module, student: Float[Tensor, "b d"], teacher: Float[Tensor, "b kd"]
) -> Float[Tensor, " b"]:
    return squared_distance(student, linear(teacher.unsqueeze(1)).squeeze(1)) / student.shape[1]


def _upwards(
    linear: nn.Module, student: Float[Tensor, "b t d"], teacher: Float[Tensor, "b t kd"], mask: Int[Tensor, "b t"]
) -> Float[Tensor, " b"]:
    by_token = squared_distance(linear(real_states(student, mask)), unit(real_states(teacher, mask)))
    return masked_mean(by_token.unsqueeze(-1), mask).squeeze(-1)


def _mask(features: Features) -> Int[Tensor, "b t"]:
    assert features.mask is not None  # token states come with one
    return features.mask


def _groups(config: Config, setting: Setting) -> tuple[tuple[int, ...], ...]:
    count, layers = setting.student.layers, range(1, setting.teacher.layers + 1)
    if not config.intermediate_only:
        return groups(config.grouping, layers, count)
    if count == 1:
        raise UserError("methods.ckd: a student of 1 layer has no intermediate layer to teach; "
                        "set `intermediate_only: false` or use a deeper student")
    return groups(config.grouping, layers[:-1], count - 1)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths and `grouping` do not fit together."""
    return (Phase("distill", Combined(config, setting)),)
