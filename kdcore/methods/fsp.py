"""FSP: the student learns how one layer's state relates to another's, as their outer product.

Yim, Joo, Bae and Kim, CVPR 2017, "A Gift from Knowledge Distillation", carried over to encoders as the relation
knowledge of Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models
via Knowledge Selection", equations 16 and 17. With CLS states h and the PKD-skip map g of layers:
  F = sum over pairs (i, j) of mean over the entries of (h_S,i h_S,j' - h_T,g(i) h_T,g(j)')^2
  L = label_weight CE + kd_weight T^2 KL + fsp_weight F

Deviations from the paper: Wang et al. select losses step by step; here all three are always on, with weights. One
position of the text is compared, so there is no mean over positions. Where the paper is silent: pairs are consecutive
matched layers, states keep their length. Where widths differ the student is mapped linearly to the teacher's width.
Extensions: other maps, other pairs, unit vectors, the token mean in place of CLS. Outer products are compared
without forming them, so a step needs no d x d matrix.
Released code: none of the authors; TextBrewer's relation sums over all tokens and divides by their number.
"""

from itertools import combinations, pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, outer_distance, unit
from kdcore.mapping import Pairs, Rule, fixed
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import Bridge, initialised_from


class Config(MethodConfig):
    """No paper gives weights for these three losses alone: equal ones, and T = 1 as in `vanilla_kd`, are our choice."""

    label_weight: float = Field(default=1.0, ge=0)
    kd_weight: float = Field(default=1.0, ge=0)
    fsp_weight: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    mapping: Rule | Pairs = "skip"
    """`skip`, `last`, `even`, or pairs [student layer, teacher layer]."""
    pairs: Literal["consecutive", "all", "first_last"] = "consecutive"
    """Which of the matched layers are related to which."""
    normalise: bool = False
    """True relates the directions of states."""
    pooling: Literal["cls", "mean"] = "cls"
    """What stands for a layer: the state of token 0, or the mean over real tokens."""


class Fsp(Objective):
    """Label loss, KD loss and the distance of the layers' relations."""

    related: Tensor

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.regression = setting.regression
        self.weights = {"label": config.label_weight, "kd": config.kd_weight, "fsp": config.fsp_weight}
        if setting.student.layers < 2:
            raise UserError("methods.fsp relates two layers to each other, but the student has one; use a deeper "
                            "student")
        matched = fixed(config.mapping, setting.teacher.layers, setting.student.layers)
        if len(matched) < 2:
            raise UserError(f"methods.fsp relates two layers to each other, but the mapping of a student of "
                            f"{setting.student.layers} layers matches one; use a deeper student, or write two pairs "
                            f"such as `mapping: [[1, 1], [{setting.student.layers}, {setting.teacher.layers}]]`")
        if config.pairs == "first_last":
            matched = (matched[0], matched[-1])
        places = range(len(matched))
        related = combinations(places, 2) if config.pairs == "all" else pairwise(places)
        self.register_buffer("related", torch.tensor([*related]).T, persistent=False)
        self.student_keys = layer_keys(config.pooling, [student for student, _ in matched])
        self.teacher_keys = layer_keys(config.pooling, [teacher for _, teacher in matched])
        with initialised_from(setting.seed):
            self.bridge = Bridge(setting.student.width, setting.teacher.width, width=None, bias=False)
        self.normalise = config.normalise
        self.needs = Needs(student=frozenset({LOGITS, *self.student_keys}),
                           teacher=frozenset({LOGITS, *self.teacher_keys}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        ours, theirs = self.bridge(student.stack(self.student_keys), teacher.stack(self.teacher_keys))
        if self.normalise:
            ours, theirs = unit(ours), unit(theirs)
        left, right = self.related
        distances = outer_distance(ours[:, left], ours[:, right], theirs[:, left], theirs[:, right])
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
            "fsp": distances.sum(dim=1) / self.bridge.width**2,
        }
        return Loss(parts, self.weights)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the depths and the mapping do not fit together."""
    return (Phase("distill", Fsp(config, setting)),)
