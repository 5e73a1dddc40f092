"""RAIL-KD, layer-wise: each student layer learns from a teacher layer that is drawn at random.

Haidar et al., Findings of NAACL 2022, "RAIL-KD: RAndom Intermediate Layer Mapping for Knowledge
Distillation", equations 1 (layer-wise loss) and 3 (total), section 4.2 (which layers are intermediate).
Each epoch draws k = m-1 of the teacher's intermediate layers 1..n-1 without replacement, sorted; the j-th
teaches student layer j. States are averaged over tokens, projected to a common width, scaled to length
one; the loss is the squared distance, summed over the k layers:
  L = lambda1 CE + lambda2 T^2 KL + lambda3 sum_i alpha_i || unit(W_T h_T,i + b_T) - unit(W_S h_S,i + b_S) ||^2

Deviations from the paper: losses are averaged over examples, where equation 1 sums over the training set
(lambda would depend on its size). Where the paper is silent: the token mean leaves padding out, one
projection per side is shared by all slots, has a bias and is trained on both sides, and T is 1.
With both sides free the loss has a trivial optimum, all vectors alike; `collapse` and `spread` watch for it.
No code of the authors is public.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys
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
    projection: Literal["shared", "per_layer"] = "shared"
    """One map per side for all slots, or one per slot."""
    freeze_teacher_projection: bool = False
    """True keeps the teacher's map as initialised, which rules the trivial optimum out."""
    alphas: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] | None = None
    """Weight of each slot; None weighs each 1."""
    resample: Literal["epoch", "step"] = "epoch"
    student_layers: tuple[int, ...] | None = None
    """The student layers to teach, 1..m; None takes all but the last."""


class LayerwiseRail(Objective):
    """Label loss, KD loss and the layer-wise loss."""

    alarms = COLLAPSE_ALARMS
    alphas: Tensor

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": config.label_weight, "kd": config.kd_weight, "rail": config.rail_weight}
        slots = student_slots(config.student_layers, setting.student.layers)
        self.draw = RandomLayers(len(slots), setting.teacher.layers, setting.seed, config.resample)
        maps = 1 if config.projection == "shared" else len(slots)
        with initialised_from(setting.seed):
            self.student_projection = Projection(setting.student.width, config.width, config.bias, maps)
            self.teacher_projection = Projection(
                setting.teacher.width, config.width, config.bias, maps, frozen=config.freeze_teacher_projection)
        self.register_buffer("alphas", torch.tensor(_alphas(config, len(slots))), persistent=False)
        self.student_keys = layer_keys("mean", slots)
        self.needs = self._needs(self.draw.candidates)

    def needs_at(self, progress: Progress) -> Needs:
        """Only the drawn teacher layers."""
        return self._needs(self.draw.at(progress.epoch, progress.step))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        drawn = self.draw.at(progress.epoch, progress.step)
        student_units = self.student_projection(torch.stack([student[key] for key in self.student_keys], dim=1))
        teacher_units = self.teacher_projection(torch.stack([teacher[key] for key in layer_keys("mean", drawn)], dim=1))
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "rail": (self.alphas * squared_distance(student_units, teacher_units)).sum(dim=1),
        }
        diagnostics: dict[str, float | Tensor] = {f"layer/{slot}": float(layer) for slot, layer in enumerate(drawn, 1)}
        diagnostics |= collapse(teacher_units)
        return Loss(parts, self.weights, diagnostics)

    def _needs(self, teacher_layers: Iterable[int]) -> Needs:
        return Needs(student=frozenset({LOGITS, *self.student_keys}),
                     teacher=frozenset({LOGITS, *layer_keys("mean", teacher_layers)}))


def _alphas(config: Config, slots: int) -> tuple[float, ...]:
    if config.alphas is None:
        return (1.0,) * slots
    if len(config.alphas) != slots:
        raise UserError(f"methods.rail_kd_l: alphas has {len(config.alphas)} weights, expected {slots}, "
                        "one for each student layer that is taught")
    return config.alphas


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths, `student_layers` and `alphas` do not fit together."""
    return (Phase("distill", LayerwiseRail(config, setting)),)
