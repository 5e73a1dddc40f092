"""Selection times knowledge: one objective for all their combinations, and what does not go together."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, Kind, layer_keys
from kdcore.knowledge import (
    Attention,
    BlockMaps,
    Fsp,
    Knowledge,
    Maps,
    Name,
    Relations,
    Scores,
    Sentences,
    Tokens,
)
from kdcore.losses import kd_loss, label_loss, layer_attention, unit
from kdcore.mapping import student_slots
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Progress, Setting
from kdcore.projection import COLLAPSE_ALARMS, Projection, collapse, initialised_from
from kdcore.selection import Selection, drawn, shares


@dataclass(frozen=True)
class Options:
    """How layers are made comparable; the defaults are RAIL-KD's."""

    normalise: bool = True
    """Whether `cls` and `mean` are compared as unit vectors."""
    always_project: bool = True
    """Whether states are projected also where the widths of the models agree."""
    width: int = 128
    """Of the space that `cls` and `mean` of both models are projected to."""
    bias: bool = True
    freeze_teacher: bool = False
    """Whether the projection of the teacher's `cls` and `mean` stays as initialised."""
    relation_heads: int | None = None
    """None takes the models' common number of heads, or the largest that divides both."""


class LayerDistillation(Objective):
    """Label loss, KD loss, and a part for each knowledge: its distances, summed over the taught layers."""

    alarms = COLLAPSE_ALARMS
    candidates: Tensor
    shares: Tensor | None

    def __init__(self, selection: Selection, knowledge: Mapping[Name, float], options: Options, setting: Setting,
                 label_weight: float, kd_weight: float, temperature: float) -> None:
        """`knowledge` gives the weight of each.

        Raises UserError when selection, knowledge and the two models do not go together.
        """
        super().__init__()
        self.selection = selection
        self.temperature = temperature
        self.regression = setting.regression
        self.weights: dict[str, float] = {"label": label_weight, "kd": kd_weight} | dict(knowledge)
        with initialised_from(setting.seed):
            self.knowledge = nn.ModuleDict({name: build(name, selection, options, setting) for name in knowledge})
            # An attentive selection compares states, taught or not, in a space that they share.
            self.matcher = (_bridge(selection, options, setting, common=options.width)
                            if selection.match and selection.match not in knowledge else None)
        self.register_buffer("candidates", torch.tensor(selection.candidates, dtype=torch.float32), persistent=False)
        self.register_buffer("shares", shares(selection), persistent=False)
        matched: tuple[Kind, ...] = (selection.match,) if selection.match else ()
        self.kinds: tuple[Kind, ...] = tuple(sorted({*matched, *(known.kind for known in self._known().values())}))
        self.needs = self._needs(selection.candidates)

    def needs_at(self, progress: Progress) -> Needs:
        """Only the selected teacher layers."""
        return self._needs(self.selection.at(progress))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        layers = self.selection.at(progress)
        ours = {kind: _stacked(student, layer_keys(kind, self.selection.slots)) for kind in self.kinds}
        theirs = {kind: _stacked(teacher, layer_keys(kind, layers)) for kind in self.kinds}
        weights = self._mixing(ours, theirs)
        parts = {
            "label": label_loss(student.logits, batch.labels, self.regression),
            "kd": kd_loss(student.logits, teacher.logits, self.temperature, self.regression),
        }
        for name, known in self._known().items():
            parts[name] = known(ours[known.kind], theirs[known.kind], weights, student.mask).sum(dim=1)
        return Loss(parts, self.weights, self._diagnostics(layers, weights, theirs))

    def _known(self) -> dict[str, Knowledge]:
        return {name: cast(Knowledge, known) for name, known in self.knowledge.items()}

    def _mixing(self, ours: Mapping[Kind, Tensor], theirs: Mapping[Kind, Tensor]) -> Float[Tensor, "b k n"] | None:
        """How much of each teacher layer each slot gets; None where each slot has a layer of its own."""
        if match := self.selection.match:
            bridge = self.matcher or cast(Sentences, self.knowledge[match]).bridge
            return layer_attention(*bridge(ours[match], theirs[match], None))
        return None if self.shares is None else self.shares.expand(len(ours[self.kinds[0]]), -1, -1)

    @torch.no_grad()
    def _diagnostics(self, layers: Sequence[int], weights: Tensor | None,
                     theirs: Mapping[Kind, Tensor]) -> dict[str, float | Tensor]:
        """The drawn layers, the mean layer that each slot attends to, the watch over projections of the teacher."""
        found: dict[str, float | Tensor] = {}
        if self.selection.draw:
            found.update((f"layer/{slot}", float(layer)) for slot, layer in enumerate(layers, 1))
        if self.selection.match and weights is not None:
            attended = weights.mean(dim=0) @ self.candidates
            found.update((f"attended/{slot}", layer) for slot, layer in enumerate(attended, 1))
        # As they are compared: without normalising, vectors that all shrink are a trivial optimum too.
        watched = [(known.kind, known.bridge, known.normalise) for known in self._known().values()
                   if isinstance(known, Sentences)]
        if self.matcher and self.selection.match:
            watched.append((self.selection.match, self.matcher, False))
        projected = [unit(bridge.teacher(theirs[kind])) if normalise else bridge.teacher(theirs[kind])
                     for kind, bridge, normalise in watched
                     if isinstance(bridge, Maps) and isinstance(bridge.teacher, Projection)]
        if projected:
            found.update(collapse(torch.cat(projected, dim=1)))
        return found

    def _needs(self, teacher_layers: Iterable[int]) -> Needs:
        def keys(layers: Iterable[int]) -> frozenset[FeatureKey]:
            return frozenset({LOGITS, *(FeatureKey(kind, layer) for layer in layers for kind in self.kinds)})

        return Needs(keys(self.selection.slots), keys(teacher_layers))


class RailConfig(MethodConfig):
    """Base of the `Config` of methods that are RAIL-KD's random draw with other knowledge; defaults are RAIL-KD's."""

    label_weight: float = Field(default=1 / 3, ge=0)
    """lambda1"""
    kd_weight: float = Field(default=1 / 3, ge=0)
    """lambda2"""
    rail_weight: float = Field(default=1 / 3, ge=0)
    """lambda3"""
    temperature: float = Field(default=1.0, gt=0)
    resample: Literal["epoch", "step"] = "epoch"
    student_layers: tuple[int, ...] | None = None
    """The student layers to teach, 1..m; None takes all but the last."""


def rail(config: RailConfig, setting: Setting, knowledge: Iterable[Name]) -> LayerDistillation:
    """Teaches each knowledge, with equal weights, of intermediate teacher layers that are drawn at random.

    Raises UserError when depths, `student_layers` or the knowledge and the two models do not fit together.
    """
    slots = student_slots(config.student_layers, setting.student.layers)
    selection = drawn(slots, setting.teacher.layers, setting.seed, config.resample)
    return LayerDistillation(selection, dict.fromkeys(knowledge, config.rail_weight), Options(), setting,
                             config.label_weight, config.kd_weight, config.temperature)


def build(name: Name, selection: Selection, options: Options, setting: Setting) -> Knowledge:
    """The knowledge of this name between the two models, for the layers of this selection.

    Raises UserError when they do not go together.
    """
    student, teacher = setting.student, setting.teacher
    if name not in ("cls", "mean", "hidden", "fsp") and 0 in (*selection.slots, *selection.candidates):
        raise UserError(f"{name} was asked of layer 0, but embeddings have no attention; pair layers "
                        f"1..{student.layers} with layers 1..{teacher.layers}, or teach layer 0 by cls, mean or hidden")
    match name:
        case "cls" | "mean":
            return Sentences(name, _bridge(selection, options, setting, common=options.width), options.normalise)
        case "hidden":
            return Tokens(_bridge(selection, options, setting, common=None))
        case "attention_scores" | "attention":
            if student.heads != teacher.heads:
                raise UserError(f"{name} is compared head by head, but the teacher has {teacher.heads} heads and the "
                                f"student {student.heads}; use a student of {teacher.heads} heads, or layer_kd with "
                                "query_relations, key_relations or value_relations, which cut both anew")
            return Scores() if name == "attention_scores" else Attention()
        case "query_relations" | "key_relations" | "value_relations":
            heads = options.relation_heads or math.gcd(student.heads, teacher.heads)
            if student.width % heads or teacher.width % heads:
                raise UserError(f"relation_heads = {heads} does not divide both widths, {teacher.width} of the teacher "
                                f"and {student.width} of the student; use a divisor of "
                                f"{math.gcd(student.width, teacher.width)}")
            return Relations(cast(Literal["query", "key", "value"], name.removesuffix("_relations")), heads)
        case "fsp":
            if selection.blocks:
                raise UserError("fsp relates the teacher's layers as they are, but a grouped selection makes new ones "
                                "by learned maps; use selection fixed, random or attention, or teach blocks by cls")
            if len(selection.slots) < 2:
                raise UserError("fsp relates each taught student layer to the next one, but only one is taught; use a "
                                "deeper student, or teach a single layer by cls")
            return Fsp(_upwards(setting, bias=False, always=False))


def _bridge(selection: Selection, options: Options, setting: Setting, common: int | None) -> Maps | BlockMaps:
    """From both widths to the common one, or from the student's to the teacher's."""
    student, teacher = setting.student.width, setting.teacher.width
    if selection.blocks:
        return BlockMaps(selection.blocks, selection.candidates, teacher, student, options.bias)
    if common is None:
        return _upwards(setting, options.bias, options.always_project)
    if student == teacher and not options.always_project:
        return Maps(nn.Identity(), nn.Identity())
    return Maps(Projection(student, common, options.bias, normalise=False),
                Projection(teacher, common, options.bias, frozen=options.freeze_teacher, normalise=False))


def _upwards(setting: Setting, bias: bool, always: bool) -> Maps:
    """From the student's width to the teacher's."""
    student, teacher = setting.student.width, setting.teacher.width
    project = always or student != teacher
    return Maps(Projection(student, teacher, bias, normalise=False) if project else nn.Identity(), nn.Identity())


def _stacked(features: Features, keys: Sequence[FeatureKey]) -> Float[Tensor, "b k *rest"]:
    return torch.stack([features[key] for key in keys], dim=1)
