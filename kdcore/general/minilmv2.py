"""MiniLMv2: how queries, keys and values relate to each other, in as many relation heads as one likes.

Wang, Bao, Huang, Dong and Wei, Findings of ACL 2021, "MiniLMv2: Multi-Head Self-Attention Relation Distillation for
Compressing Pretrained Transformers", section 3. The heads' vectors of a layer are joined and cut anew into r relation
heads of width d / r in each model; for x in queries, keys and values, with n real tokens of a text,
  R_x = softmax(x x' / sqrt(d / r))
  L   = sum over x of w_x mean over texts of 1 / (r n) sum over heads and tokens of KL(R_x,T || R_x,S)
Head counts and widths of the models are free as long as r divides both widths; no word is masked. The student's last
layer learns from `teacher_layer`: the last for base-size teachers, 21 of 24 for BERT-large, 19 of 24 for RoBERTa-large
and XLM-R-large.

Deviations from the paper: padding is no token of a text, which it does not say.
Released code: models only; bloomberg/minilmv2.bb normalises by heads and each text's own length, as here.
"""

import math

from pydantic import Field
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features, Kind
from kdcore.mapping import teacher_layer
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.token_losses import relation_divergence, split_heads

KINDS: tuple[Kind, ...] = ("query", "key", "value")


class Config(MethodConfig):
    """Defaults are the paper's for base-size teachers; large ones have 64 relation heads and another layer."""

    query_weight: float = Field(default=1 / 3, ge=0)
    key_weight: float = Field(default=1 / 3, ge=0)
    value_weight: float = Field(default=1 / 3, ge=0)
    relation_heads: int | None = Field(default=48, ge=1)
    """r; None takes the largest number that divides the head counts of both models."""
    teacher_layer: int | None = None
    """1..n; None takes the last."""


class MiniLmV2(Objective):
    """The divergences of the three relations."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.heads = _relation_heads(config.relation_heads, setting)
        self.weights = {"query": config.query_weight, "key": config.key_weight, "value": config.value_weight}
        layer = teacher_layer(config.teacher_layer, setting.teacher.layers)
        self.keys = {kind: (FeatureKey(kind, setting.student.layers), FeatureKey(kind, layer)) for kind in KINDS}
        self.needs = Needs(student=frozenset(ours for ours, _ in self.keys.values()),
                           teacher=frozenset(theirs for _, theirs in self.keys.values()))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        parts: dict[str, Tensor] = {
            kind: relation_divergence(split_heads(student[ours], self.heads),
                                      split_heads(teacher[theirs], self.heads), student.token_mask)
            for kind, (ours, theirs) in self.keys.items()}
        return Loss(parts, self.weights)


def _relation_heads(named: int | None, setting: Setting) -> int:
    student, teacher = setting.student, setting.teacher
    heads = named or math.gcd(student.heads, teacher.heads)
    if student.width % heads or teacher.width % heads:
        raise UserError(f"relation_heads is {heads}, which does not divide both widths, {teacher.width} of the teacher "
                        f"and {student.width} of the student; use a divisor of "
                        f"{math.gcd(student.width, teacher.width)}, or null to find one")
    return heads


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when `relation_heads` or `teacher_layer` do not fit the models."""
    return (Phase("pretrain", MiniLmV2(config, setting)),)
