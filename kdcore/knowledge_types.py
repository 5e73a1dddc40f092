"""Four types of knowledge of a teacher and of labels, as losses per example: response, feature, relation, fine-tuning.

Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models via Knowledge
Selection", equations 14 to 18; what methods that choose among them share. With logits z, CLS states h and the map g of
layers (PKD-skip),
  response  ResK = T^2 KL(softmax(z_T / T) || softmax(z_S / T))
  feature   FeaK = sum over pairs of || unit(h_S,i) - unit(h_T,g(i)) ||^2
  relation  RelK = sum over consecutive pairs (i, j) of mean over the entries of (h_S,i h_S,j' - h_T,g(i) h_T,g(j)')^2
  label     FinK = cross-entropy, or the squared error of a regression
Objectives of other methods may stand beside them, see `kdcore/choice.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

import torch
from jaxtyping import Float
from pydantic import Discriminator, Field, SerializationInfo, Tag, field_validator, model_serializer, model_validator
from torch import Tensor, nn

from kdcore import methods
from kdcore.errors import UserError, did_you_mean
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, outer_distance, squared_distance, unit
from kdcore.mapping import Pairs, Rule, fixed
from kdcore.method_config import METHOD, MethodConfig, MethodEntry
from kdcore.objective import Batch, Needs, Setting
from kdcore.projection import Bridge, initialised_from
from kdcore.strict import Strict, parse

Type = Literal["response", "feature", "relation", "label"]
TYPES: tuple[Type, ...] = get_args(Type)
"""In the paper's order."""


WEIGHT = "weight"
Weight = Annotated[float, Field(ge=0)]


class Borrowed(Strict):
    """Another method's objective: an entry as under `methods`, with a weight that stays."""

    method: str
    weight: Weight = 1.0
    settings: MethodConfig

    @model_serializer
    def _as_written(self, how: SerializationInfo) -> dict[str, Any]:
        return {METHOD: self.method, WEIGHT: self.weight} | self.settings.model_dump(mode=how.mode)


def _kind(entry: Any) -> str:
    return "[objective]" if isinstance(entry, Borrowed) else "[weight]"  # in brackets: no part of an error's place


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]
Entry = Annotated[Annotated[Weight, Tag("[weight]")] | Annotated[Borrowed, Tag("[objective]")], Discriminator(_kind)]


class KnowledgeConfig(MethodConfig):
    """Base of the `Config` of methods that choose among types of knowledge and objectives of other methods."""

    knowledge: dict[Name, Entry] = Field(default=dict.fromkeys(TYPES, 1.0), min_length=1)
    """What there is to choose from: types, each with a weight that stays, and objectives of other methods, each an
    entry as under `methods`, such as `rail: {method: rail_kd_l, weight: 0.5, width: 64}`."""
    temperature: float = Field(default=1.0, gt=0)
    """`response`"""
    mapping: Rule | Pairs = "skip"
    """`feature`, `relation`: `skip`, `last`, `even`, or pairs [student layer, teacher layer]."""

    @field_validator("knowledge", mode="before")
    @classmethod
    def _objectives_are_of_methods(cls, written: Any) -> Any:
        if not isinstance(written, Mapping):
            return written
        return {name: _borrowed(name, entry) if isinstance(entry, Mapping) else entry
                for name, entry in written.items()}

    @model_validator(mode="after")
    def _numbers_are_weights_of_types(self) -> Self:
        for name, entry in self.knowledge.items():
            if isinstance(entry, Borrowed) and name in TYPES:
                raise ValueError(f"knowledge.{name} is a type of knowledge, which has a weight and no settings; give "
                                 "another method's objective another name")
            if not isinstance(entry, Borrowed) and name not in TYPES:
                raise ValueError(f"knowledge.{name} = {entry:g}: {name} is no type of knowledge; "
                                 f"{did_you_mean(name, TYPES)} An objective of another method is written as "
                                 f"`NAME: {{method: METHOD, weight: {entry:g}}}`")
        return self

    @model_validator(mode="after")
    def _knowledge_is_used(self) -> Self:
        for key, concerned in (("temperature", {"response"}), ("mapping", {"feature", "relation"})):
            if key in self.model_fields_set and not concerned & set(self.knowledge):
                raise ValueError(f"{key} concerns {' and '.join(sorted(concerned))}, of which `knowledge` names none; "
                                 "leave it out")
        return self

    @property
    def types(self) -> tuple[Type, ...]:
        """The types to choose from, in the paper's order."""
        return tuple(name for name in TYPES if name in self.knowledge)

    @property
    def borrowed(self) -> dict[str, Borrowed]:
        """The objectives of other methods to choose from, sorted by name."""
        return {name: entry for name, entry in sorted(self.knowledge.items()) if isinstance(entry, Borrowed)}

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each candidate; the order, of types and then objectives, is that of actions."""
        entries = ((name, self.knowledge[name]) for name in (*self.types, *self.borrowed))
        return {name: entry.weight if isinstance(entry, Borrowed) else entry for name, entry in entries}


def _borrowed(name: str, written: Mapping[str, Any]) -> Borrowed:
    """An entry of `knowledge`; a ValueError where it does not fit, which the settings around it say more about."""
    method = str(written.get(METHOD, name))
    options = {key: value for key, value in written.items() if key not in (METHOD, WEIGHT)}
    weight = {WEIGHT: written[WEIGHT]} if WEIGHT in written else {}
    try:
        settings = methods.of_entry(MethodEntry(name, method, options))
        if isinstance(settings, KnowledgeConfig):
            raise UserError(f"methods.{name}: {method} chooses itself, and cannot be chosen; name here what it would "
                            "choose from")
        return parse(Borrowed, {METHOD: method, "settings": settings} | weight, f"methods.{name}")
    except UserError as error:
        raise ValueError(f"knowledge{str(error).removeprefix('methods')}") from None


class KnowledgeTypes(nn.Module):
    """The losses. Where widths differ, features and relations are compared after a linear map each of the student's
    states to the teacher's width."""

    def __init__(self, config: KnowledgeConfig, setting: Setting) -> None:
        """Raises UserError when the depths and the mapping do not fit together."""
        super().__init__()
        self.types = config.types
        self.temperature = config.temperature
        self.regression = setting.regression
        compared = [name for name in self.types if name in ("feature", "relation")]
        pairs = fixed(config.mapping, setting.teacher.layers, setting.student.layers) if compared else ()
        if "relation" in compared and len(pairs) < 2:
            deepest = [setting.student.layers, setting.teacher.layers]
            raise UserError(f"relation relates two layers to each other, but the mapping of a student of {deepest[0]} "
                            "layers matches one; leave relation out of `knowledge`, or write two pairs such as "
                            f"`mapping: [[1, 1], {deepest}]`")
        self.student_keys = layer_keys("cls", [student for student, _ in pairs])
        self.teacher_keys = layer_keys("cls", [teacher for _, teacher in pairs])
        with initialised_from(setting.seed):
            self.bridges = nn.ModuleDict({name: Bridge(setting.student.width, setting.teacher.width, None, bias=False)
                                          for name in compared})
        self._initial = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}

    def needs(self, types: tuple[Type, ...]) -> Needs:
        """What some of the types read."""
        layers = {"feature", "relation"} & set(types)
        student: set[FeatureKey] = set(self.student_keys) if layers else set()
        teacher: set[FeatureKey] = set(self.teacher_keys) if layers else set()
        if {"response", "label"} & set(types):
            student.add(LOGITS)
        if "response" in types:
            teacher.add(LOGITS)
        return Needs(frozenset(student), frozenset(teacher))

    def forward(self, student: Features, teacher: Features, batch: Batch,
                types: tuple[Type, ...]) -> dict[str, Float[Tensor, " b"]]:
        """The losses of some of the types, in this order."""
        return {name: self._loss(name, student, teacher, batch) for name in types}

    @torch.no_grad()
    def reset(self) -> None:
        """Put the maps back to what they were at the start, for another student."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self._initial[name])

    def _loss(self, name: Type, student: Features, teacher: Features, batch: Batch) -> Float[Tensor, " b"]:
        match name:
            case "response":
                return kd_loss(student.logits, teacher.logits, self.temperature, self.regression)
            case "label":
                return label_loss(student.logits, batch.labels, self.regression)
        bridge = self.bridges[name]
        ours, theirs = bridge(student.stack(self.student_keys), teacher.stack(self.teacher_keys))
        if name == "feature":
            return squared_distance(unit(ours), unit(theirs)).sum(dim=1)
        return outer_distance(ours[:, :-1], ours[:, 1:], theirs[:, :-1], theirs[:, 1:]).sum(dim=1) / ours.shape[-1] ** 2
