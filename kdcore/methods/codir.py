"""CoDIR: the student's vector of an example must find the teacher's one among those of other examples.

Sun, Gan, Fang, Cheng, Wang and Liu, EMNLP 2020, "Contrastive Distillation on Intermediate Representations for Language
Model Compression", the fine-tuning stage. z = unit([h_1 .. h_last] A + a), with h the mean of a layer over real tokens
and the layers concatenated in order; both maps are trained. A bank M holds a teacher vector per training example:
  C = -log exp(<z_S, z_T> / tau) / (exp(<z_S, z_T> / tau) + sum over K negatives k of exp(<z_S, M_k> / tau))
  L = (1 - alpha) CE + alpha T^2 KL + gamma C;  after each step M_b <- unit(mu M_b + (1 - mu) z_T,b)
Negatives are training examples with another label, drawn anew for each example and step.

Deviations from the paper: C follows its description, not a formula that was checked. Rows of the bank start in random
directions. Regression draws negatives from all other examples. `bank: refresh` computes all rows anew before each epoch
in place of the updates. The pre-training stage is left out. An example without a label has negatives among all others,
as texts of that stage have, and is none of those with another label.
Released code (intersun/CoDIR) has another objective, here `nce_two_sided`: noise-contrastive estimation with a bank for
each side, see `TwoSidedNce`. There Z is the mean over the first batch already while that batch is learned from. Its
layers are `pooling: cls`, `teacher_layers: [1, 3, 5, 7, 9, 11]`. Not followed: CE and KL summed over the batch while C
is averaged, dropout in the teacher, a loss of regression between all pairs of examples.
"""

from collections.abc import Mapping
from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from kdcore.contrastive import InfoNce, TwoSidedNce
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss
from kdcore.method_config import MethodConfig
from kdcore.negatives import Negatives, Source
from kdcore.objective import Batch, Examine, Loss, Needs, Objective, Phase, Progress, Setting, TeacherOf
from kdcore.projection import Projection, initialised_from

REFRESHED_TOGETHER = 256
"""So many examples' teacher features are in memory at once while the bank is refreshed."""


class Config(MethodConfig):
    """Defaults are the released code's, but gamma, which is always searched there: 0.1 is our choice."""

    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of the KD term; the label loss weighs 1 - alpha."""
    gamma: float = Field(default=0.1, ge=0)
    """Weight of the contrastive term."""
    temperature: float = Field(default=2.0, gt=0)
    objective: Literal["info_nce", "nce_two_sided"] = "info_nce"
    negatives: int = Field(default=100, ge=0)
    """K"""
    negatives_from: Source = "different"
    """Examples of another label, any others, or others of the same label; regression takes any."""
    tau: float = Field(default=0.07, gt=0)
    width: int = Field(default=128, ge=1)
    bias: bool = True
    bank: Literal["momentum", "refresh"] = "momentum"
    """Move a step's rows after it, or compute all rows before each epoch."""
    momentum: float = Field(default=0.5, ge=0, lt=1)
    """mu"""
    pooling: Literal["mean", "cls"] = "mean"
    """What stands for a layer: the mean over real tokens, or the state of token 0."""
    teacher_layers: tuple[int, ...] | None = None
    """Which are concatenated, of 1..n; None takes all."""

    @model_validator(mode="after")
    def _both_banks_can_be_kept(self) -> Self:
        if self.objective == "nce_two_sided" and self.bank == "refresh":
            raise ValueError("bank: refresh computes vectors of the teacher alone, but nce_two_sided has a bank of the "
                             "student's too; set bank: momentum")
        return self


class CoDir(Objective):
    """Label loss, KD loss and the contrastive loss."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": 1 - config.alpha, "kd": config.alpha, "codir": config.gamma}
        self.student_keys = layer_keys(config.pooling, range(1, setting.student.layers + 1))
        self.teacher_keys = layer_keys(config.pooling, _teacher_layers(config, setting.teacher.layers))
        with initialised_from(setting.seed):
            self.student_projection = Projection(
                len(self.student_keys) * setting.student.width, config.width, config.bias)
            self.teacher_projection = Projection(
                len(self.teacher_keys) * setting.teacher.width, config.width, config.bias)
        self.draw = Negatives(setting.labels.long(), config.negatives,
                              "any" if setting.regression else config.negatives_from, setting.seed)
        self.contrast = (InfoNce if config.objective == "info_nce" else TwoSidedNce)(
            setting.examples, config.width, config.tau, setting.batch_size,
            torch.Generator().manual_seed(setting.seed))
        self.momentum = config.momentum if config.bank == "momentum" else None
        self.needs = Needs(student=frozenset({LOGITS, *self.student_keys}),
                           teacher=frozenset({LOGITS, *self.teacher_keys}))

    def before_epoch(self, progress: Progress, teacher: TeacherOf) -> None:
        if self.momentum is None and isinstance(self.contrast, InfoNce):
            bank = self.contrast.bank
            for ids in torch.arange(len(bank.rows)).split(REFRESHED_TOGETHER):
                with torch.no_grad():
                    vectors = self._teacher_vectors(teacher(ids, frozenset(self.teacher_keys)))
                bank.update(ids.to(bank.rows.device), vectors, momentum=0.0)

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        student_vectors = self.student_projection(_concatenated(student, self.student_keys)).squeeze(1)
        negatives = self.draw(batch.ids, progress.step)
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "codir": self.contrast(
                student_vectors, self._teacher_vectors(teacher), batch.ids, negatives, progress.step),
        }
        return Loss(parts, self.weights)

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        if self.momentum is not None:
            self.contrast.update(self.momentum)
        return {}

    def _teacher_vectors(self, teacher: Features) -> Float[Tensor, "b width"]:
        return self.teacher_projection(_concatenated(teacher, self.teacher_keys)).squeeze(1)


def _concatenated(features: Features, keys: tuple[FeatureKey, ...]) -> Float[Tensor, "b 1 kd"]:
    return features.stack(keys).flatten(1).unsqueeze(1)


def _teacher_layers(config: Config, layers: int) -> tuple[int, ...]:
    named = tuple(range(1, layers + 1)) if config.teacher_layers is None else config.teacher_layers
    if not named or len(set(named)) < len(named) or not set(named) <= set(range(1, layers + 1)):
        raise UserError(f"methods.codir: teacher_layers is {list(named)}, expected different layers of 1..{layers}, "
                        "one at least; leave it out to take all")
    return named


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when `teacher_layers` does not fit, or an example has no negatives."""
    return (Phase("distill", CoDir(config, setting)),)
