"""RAIL-KD, concatenated: the student's layers together learn from randomly drawn teacher layers.

Haidar et al., Findings of NAACL 2022, "RAIL-KD: RAndom Intermediate Layer Mapping for Knowledge
Distillation", equations 2 (concatenated loss) and 3 (total), section 4.2 (which layers are intermediate).
Each epoch draws k = m-1 of the teacher's intermediate layers 1..n-1 without replacement, sorted. The token
means of the k layers are concatenated in layer order, projected to a common width and scaled to length one:
  L = lambda1 CE + lambda2 T^2 KL + lambda3 || unit(W_T [h_T,1..h_T,k] + b_T) - unit(W_S [h_S,1..h_S,k] + b_S) ||^2

Deviations from the paper: losses are averaged over examples, where equation 2 sums over the training set
(lambda would depend on its size). Where the paper is silent: the token mean leaves padding out, the
projections have a bias and are trained on both sides, and T is 1.
With both sides free the loss has a trivial optimum, all vectors alike; `collapse` and `spread` watch for it.
No code of the authors is public.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, squared_distance
from kdcore.mapping import RandomLayers, student_slots
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import COLLAPSE_ALARMS, Projection, collapse, initialised_from


class Config(MethodConfig):
    """Defaults are the paper's (width 128, equal weights); those it does not give are named above."""

    label_weight: float = Field(default=1 / 3, ge=0, allow_inf_nan=False)
    """lambda1"""
    kd_weight: float = Field(default=1 / 3, ge=0, allow_inf_nan=False)
    """lambda2"""
    rail_weight: float = Field(default=1 / 3, ge=0, allow_inf_nan=False)
    """lambda3"""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    width: int = Field(default=128, ge=1)
    """Of the space in which the layers are compared."""
    bias: bool = True
    freeze_teacher_projection: bool = False
    """True keeps the teacher's map as initialised, which rules the trivial optimum out."""
    resample: Literal["epoch", "step"] = "epoch"
    student_layers: tuple[int, ...] | None = None
    """The student layers to teach, 1..m; None takes all but the last."""


class ConcatenatedRail(Objective):
    """Label loss, KD loss and the concatenated loss."""

    alarms = COLLAPSE_ALARMS

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": config.label_weight, "kd": config.kd_weight, "rail": config.rail_weight}
        slots = student_slots(config.student_layers, setting.student.layers)
        self.draw = RandomLayers(len(slots), setting.teacher.layers, setting.seed, config.resample)
        with initialised_from(setting.seed):
            self.student_projection = Projection(len(slots) * setting.student.width, config.width, config.bias)
            self.teacher_projection = Projection(
                len(slots) * setting.teacher.width, config.width, config.bias, frozen=config.freeze_teacher_projection)
        self.student_keys = layer_keys("mean", slots)
        self.needs = self._needs(self.draw.candidates)

    def needs_at(self, progress: Progress) -> Needs:
        """Only the drawn teacher layers."""
        return self._needs(self.draw.at(progress.epoch, progress.step))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        drawn = self.draw.at(progress.epoch, progress.step)
        student_units = self.student_projection(_concatenated(student, self.student_keys))
        teacher_units = self.teacher_projection(_concatenated(teacher, layer_keys("mean", drawn)))
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "rail": squared_distance(student_units, teacher_units).squeeze(1),
        }
        diagnostics: dict[str, float | Tensor] = {f"layer/{slot}": float(layer) for slot, layer in enumerate(drawn, 1)}
        diagnostics |= collapse(teacher_units)
        return Loss(parts, self.weights, diagnostics)

    def _needs(self, teacher_layers: Iterable[int]) -> Needs:
        return Needs(student=frozenset({LOGITS, *self.student_keys}),
                     teacher=frozenset({LOGITS, *layer_keys("mean", teacher_layers)}))


def _concatenated(features: Features, keys: Sequence[FeatureKey]) -> Float[Tensor, "b 1 kd"]:
    return torch.cat([features[key] for key in keys], dim=1).unsqueeze(1)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths and `student_layers` do not fit together."""
    return (Phase("distill", ConcatenatedRail(config, setting)),)
