"""Four types of knowledge of a teacher and of labels, as losses per example: response, feature, relation, fine-tuning.

Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models via Knowledge
Selection", equations 14 to 18; what methods that choose among them share. With logits z, CLS states h and the map g of
layers (PKD-skip),
  response  ResK = T^2 KL(softmax(z_T / T) || softmax(z_S / T))
  feature   FeaK = sum over pairs of || unit(h_S,i) - unit(h_T,g(i)) ||^2
  relation  RelK = sum over consecutive pairs (i, j) of mean over the entries of (h_S,i h_S,j' - h_T,g(i) h_T,g(j)')^2
  label     FinK = cross-entropy, or the squared error of a regression
"""

from typing import Annotated, Literal, Self, get_args

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from kdcore.config import MethodConfig
from kdcore.errors import UserError
from kdcore.features import LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, outer_distance, squared_distance, unit
from kdcore.mapping import Pairs, Rule, fixed
from kdcore.objective import Batch, Needs, Setting
from kdcore.projection import Bridge, initialised_from

Type = Literal["response", "feature", "relation", "label"]
TYPES: tuple[Type, ...] = get_args(Type)
"""In the paper's order."""


class KnowledgeConfig(MethodConfig):
    """Base of the `Config` of methods that choose among types of knowledge."""

    knowledge: dict[Type, Annotated[float, Field(ge=0)]] = Field(default=dict.fromkeys(TYPES, 1.0), min_length=1)
    """The types to choose from, each with a weight that stays."""
    temperature: float = Field(default=1.0, gt=0)
    mapping: Rule | Pairs = "skip"
    """`feature`, `relation`: `skip`, `last`, `even`, or pairs [student layer, teacher layer]."""

    @model_validator(mode="after")
    def _knowledge_is_used(self) -> Self:
        for key, concerned in (("temperature", {"response"}), ("mapping", {"feature", "relation"})):
            if key in self.model_fields_set and not concerned & set(self.knowledge):
                raise ValueError(f"{key} concerns {' and '.join(sorted(concerned))}, of which `knowledge` names none; "
                                 "leave it out")
        return self

    @property
    def types(self) -> tuple[Type, ...]:
        """Those to choose from, in the paper's order."""
        return tuple(name for name in TYPES if name in self.knowledge)


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
