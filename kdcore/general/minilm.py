"""MiniLM: the student's last layer learns how the teacher's attends, and how its values relate to each other.

Wang, Wei, Dong, Bao, Yang and Zhou, NeurIPS 2020, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic
Compression of Pre-Trained Transformers", sections 3.1 and 3.2. In each of h heads, with n real tokens of a text,
  A = softmax(q k' / sqrt d),  V = softmax(v v' / sqrt d)
  L = mean over texts of 1 / (h n) sum over heads and tokens of [ KL(A_T || A_S) + KL(V_T || V_S) ]
Nothing is projected, widths and depths are free, and no word is masked. The ablations of section 4 are settings:
`values: none` has no value relation, `values: mse` the squared difference of values, `layers: layer_to_layer` compares
every student layer i with teacher layer i n/m, as TinyBERT does, and sums. A teacher assistant (section 3.3) is a
student of a general study that teaches the next one.

Deviations from the paper: padding is neither query nor key, which it does not say. `values: mse` is the mean over the
real tokens of the optimiser step and the teacher's width, to which a linear map takes the student's values where widths
differ. Another teacher layer and weights are extensions.
Released code: models and fine-tuning only.
"""

from typing import Literal, Self

from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features, Kind
from kdcore.mapping import Pairs, teacher_layer, uniform
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting, Step, summed_over_layers
from kdcore.projection import Bridge, initialised_from
from kdcore.token_losses import (
    attention_divergence,
    hidden_distance,
    per_token,
    probabilities,
    real_states,
    relation_divergence,
)


class Config(MethodConfig):
    """Defaults are the paper's."""

    attention_weight: float = Field(default=1.0, ge=0)
    value_weight: float = Field(default=1.0, ge=0)
    values: Literal["relation", "mse", "none"] = "relation"
    """What is compared of the values."""
    layers: Literal["last", "layer_to_layer"] = "last"
    """The student's last layer, or each of its layers."""
    teacher_layer: int | None = None
    """`layers: last`: the teacher layer that teaches, 1..n; None takes the last."""

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        if self.layers == "layer_to_layer" and self.teacher_layer is not None:
            raise ValueError("teacher_layer goes with layers: last, not with layer_to_layer; leave one of them out")
        if self.values == "none" and "value_weight" in self.model_fields_set:
            raise ValueError("value_weight does nothing with values: none; leave it out")
        return self


class MiniLm(Objective):
    """The divergence of attention, and the distance of values; of several layers the log has every summand."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.pairs = _pairs(config, setting)
        self.values = config.values
        self.weights = {"attention": config.attention_weight}
        kinds: list[Kind] = ["scores"]
        if config.values != "none":
            self.weights[f"value_{config.values}"] = config.value_weight
            kinds.append("value")
        if config.values == "mse":
            with initialised_from(setting.seed):
                self.bridge = Bridge(setting.student.width, setting.teacher.width, width=None)
        self.needs = Needs(student=frozenset(FeatureKey(kind, ours) for ours, _ in self.pairs for kind in kinds),
                           teacher=frozenset(FeatureKey(kind, theirs) for _, theirs in self.pairs for kind in kinds))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        mask = student.token_mask
        layers = {"attention": {
            ours.layer: attention_divergence(student[ours], probabilities(teacher[theirs], mask), mask)
            for ours, theirs in self._keys("scores")}}
        if self.values != "none":
            layers[f"value_{self.values}"] = {
                ours.layer: self._value_distance(student[ours], teacher[theirs], mask, batch.step)
                for ours, theirs in self._keys("value")}
        parts, summands = summed_over_layers(layers)
        return Loss(parts, self.weights, summands if len(self.pairs) > 1 else {})

    def _keys(self, kind: Kind) -> list[tuple[FeatureKey, FeatureKey]]:
        return [(FeatureKey(kind, ours), FeatureKey(kind, theirs)) for ours, theirs in self.pairs]

    def _value_distance(self, student: Float[Tensor, "b h t d"], teacher: Float[Tensor, "b h t e"],
                        mask: Int[Tensor, "b t"], step: Step | None) -> Float[Tensor, " b"]:
        if self.values == "relation":
            return relation_divergence(student, teacher, mask)
        ours, theirs = self.bridge(*(real_states(side, mask).transpose(1, 2).flatten(2) for side in (student, teacher)))
        return per_token(hidden_distance(ours, theirs, mask), mask, step)


def _pairs(config: Config, setting: Setting) -> Pairs:
    student, teacher = setting.student, setting.teacher
    if student.heads != teacher.heads:
        raise UserError(f"attention is compared head by head, but the teacher has {teacher.heads} heads and the "
                        f"student {student.heads}; use a student of {teacher.heads} heads, or the method minilmv2, "
                        "which cuts the vectors of both into heads anew")
    if config.layers == "layer_to_layer":
        return uniform(teacher.layers, student.layers)
    return ((student.layers, teacher_layer(config.teacher_layer, teacher.layers)),)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when head counts, `teacher_layer` or, layer to layer, depths do not fit."""
    return (Phase("pretrain", MiniLm(config, setting)),)
