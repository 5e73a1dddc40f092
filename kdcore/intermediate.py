"""TinyBERT's Transformer-layer distillation: token states and attention scores of student layers and the teacher's.

Jiao et al., Findings of EMNLP 2020, "TinyBERT: Distilling BERT for Natural Language Understanding", section 3.1,
equations 6 to 8; what its general and its task-specific distillation share. With H the states, S the attention scores
q k' / sqrt(d) before mask and softmax, and the map g(i) = i n/m,
  L = sum_{i=0..m} mean (H_S,i W + b - H_T,g(i))^2 + sum_{i=1..m} mean (S_S,i - S_T,g(i))^2
Layer 0 is the embeddings. Means are over the real tokens (pairs of real tokens) of the optimiser step, width and heads.
"""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.features import FeatureKey, Features
from kdcore.mapping import Pairs, explicit, uniform
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Progress, Setting, summed_over_layers
from kdcore.projection import Projection, initialised_from
from kdcore.token_losses import hidden_distance, per_pair, per_token, real_states, score_distance

Maps = Literal["shared", "embeddings_apart", "per_layer", "none"]


class IntermediateConfig(MethodConfig):
    """Base of the `Config` of methods that distil Transformer layers as TinyBERT does."""

    hidden: Literal["uniform"] | Pairs = "uniform"
    """Whose token states are compared: g of layers 0..m, or pairs [student layer, teacher layer]; [] compares none."""
    attention: Literal["uniform"] | Pairs = "uniform"
    """Whose attention scores are compared: g of layers 1..m, or pairs; [] compares none."""
    projection: Maps = "shared"
    """Of the student's states: one map for all layers, one for the embeddings and one for layers, one per layer, or
    none."""


class Intermediate(Objective):
    """The two sums, unweighted; the log has every layer's summand."""

    def __init__(self, config: IntermediateConfig, setting: Setting, masks_tokens: bool = False) -> None:
        """Raises UserError when depths, widths or head counts do not fit what is to be compared."""
        super().__init__()
        self.masks_tokens = masks_tokens
        self.hidden = _pairs(config.hidden, setting, lowest=0)
        self.attention = _pairs(config.attention, setting, lowest=1)
        _refuse_misfits(self.hidden, self.attention, config.projection, setting)
        self.map_of = {layer: _map_of(layer, config.projection) for layer, _ in self.hidden}
        with initialised_from(setting.seed):
            self.maps = nn.ModuleDict({name: _map(config.projection, setting) for name in self.map_of.values()})
        self.needs = Needs(student=self._keys(side=0), teacher=self._keys(side=1))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        mask, step = student.token_mask, batch.step
        layers: dict[str, dict[int, Tensor]] = {}
        if self.hidden:
            layers["hidden"] = {ours: per_token(self._gap(student, teacher, ours, theirs), mask, step)
                                for ours, theirs in self.hidden}
        if self.attention:
            layers["attention"] = {
                ours: per_pair(score_distance(student[FeatureKey("scores", ours)],
                                              teacher[FeatureKey("scores", theirs)], mask), mask, step)
                for ours, theirs in self.attention}
        parts, summands = summed_over_layers(layers)
        return Loss(parts, dict.fromkeys(parts, 1.0), summands)

    def _gap(self, student: Features, teacher: Features, ours: int, theirs: int) -> Float[Tensor, " b"]:
        states = real_states(student[FeatureKey("hidden", ours)], student.token_mask)
        projected = self.maps[self.map_of[ours]](states)
        return hidden_distance(projected, teacher[FeatureKey("hidden", theirs)], student.token_mask)

    def _keys(self, side: Literal[0, 1]) -> frozenset[FeatureKey]:
        return frozenset({*(FeatureKey("hidden", pair[side]) for pair in self.hidden),
                          *(FeatureKey("scores", pair[side]) for pair in self.attention)})


def _pairs(wanted: Literal["uniform"] | Pairs, setting: Setting, lowest: Literal[0, 1]) -> Pairs:
    teacher, student = setting.teacher.layers, setting.student.layers
    if wanted != "uniform":
        return explicit(wanted, teacher, student, lowest) if wanted else ()
    try:
        layers = uniform(teacher, student)
    except UserError as error:
        raise UserError(f"{error}, or write pairs [student layer, teacher layer] for `hidden` and `attention`, such "
                        f"as [[{student}, {teacher}]]") from None
    return ((0, 0), *layers) if lowest == 0 else layers


def _refuse_misfits(hidden: Pairs, attention: Pairs, projection: Maps, setting: Setting) -> None:
    student, teacher = setting.student, setting.teacher
    if not hidden and not attention:
        raise UserError("hidden and attention both name no layers, so nothing is compared; give one of them pairs "
                        "[student layer, teacher layer], or leave it out for the uniform mapping")
    if attention and student.heads != teacher.heads:
        raise UserError(f"attention scores are compared head by head, but the teacher has {teacher.heads} heads and "
                        f"the student {student.heads}; use a student of {teacher.heads} heads, or compare token "
                        "states alone: `attention: []`")
    if hidden and projection == "none" and student.width != teacher.width:
        raise UserError(f"projection = none compares token states as they are, but the teacher has a width of "
                        f"{teacher.width} and the student of {student.width}; use projection: shared, "
                        "embeddings_apart or per_layer")


def _map_of(layer: int, projection: Maps) -> str:
    """The name of the map that a student layer's states go through."""
    match projection:
        case "embeddings_apart":
            return "layers" if layer else "embeddings"
        case "per_layer":
            return str(layer)
        case "shared" | "none":
            return "all"


def _map(projection: Maps, setting: Setting) -> nn.Module:
    if projection == "none":
        return nn.Identity()
    return Projection(setting.student.width, setting.teacher.width, normalise=False)
