"""Layer KD: any selection of teacher layers with any knowledge of a layer, several kinds at once.

An extension of ours, no paper's method: it takes the two choices apart that the papers make together,
  L = label_weight CE + kd_weight T^2 KL + layer_weight sum_k w_k sum_j d_k(student layer j, its teacher layer)
`selection` is which teacher layers teach student layer j: one that is fixed (PKD, Sun et al. 2019) or drawn at random
(RAIL-KD, Haidar et al. 2022), all of them by attention (ALP-KD, Passban et al. 2021), or a block (CKD, Wu et al. 2020).
`knowledge` is what is compared: `cls` and `mean`, sentence vectors (PKD, RAIL-KD); `hidden`, all token states, and
`attention_scores` before the softmax (TinyBERT, Jiao et al. 2020); `attention` and `value_relations` (MiniLM, Wang et
al. 2020), `query_relations` and `key_relations` (MiniLMv2, Wang et al. 2021), KL divergences of distributions over
tokens; `fsp`, outer products of neighbouring layers' CLS states (Yim et al. 2017).
Attention over layers weighs by CLS (`match`) whatever is taught; it mixes attention and relations as probabilities.

Deviations from the papers: losses are averaged over examples, token-level ones within each example first, where
TinyBERT's code takes the mean over the whole batch: an example's value would depend on its company. Padding never
counts. Blocks mix scores, attention and relations with equal weights, since CKD's maps need vectors. Where head counts
differ, relations cut both models' vectors into the largest number of heads that divides both.
With cls or mean projected on both sides the loss has a trivial optimum; `collapse` and `spread` watch for it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kdcore.composition import LayerDistillation, Options
from kdcore.knowledge import Name
from kdcore.mapping import Grouping, Pairs, Rule, explicit, groups, student_slots
from kdcore.mapping import fixed as fixed_pairs
from kdcore.method_config import MethodConfig
from kdcore.objective import Phase, Setting
from kdcore.selection import Selection, attentive, drawn, fixed, grouped


class Config(MethodConfig):
    """Defaults are RAIL-KD's, layer-wise; those of other papers are the tables of docs/methods.md."""

    label_weight: float = Field(default=1 / 3, ge=0)
    kd_weight: float = Field(default=1 / 3, ge=0)
    layer_weight: float = Field(default=1 / 3, ge=0)
    """Of all knowledge together."""
    temperature: float = Field(default=1.0, gt=0)
    selection: Literal["fixed", "random", "attention", "grouped"] = "random"
    mapping: Rule | Pairs = "skip"
    """`fixed`: `skip`, `last`, `even`, or pairs [student layer, teacher layer], where 0 is the embeddings."""
    resample: Literal["epoch", "step"] = "epoch"
    """`random`: when layers are drawn anew."""
    match: Literal["cls", "mean"] = "cls"
    """`attention`: the states whose similarity weighs the teacher's layers."""
    grouping: Grouping = "regular"
    """`grouped`: how teacher layers 1..n are dealt to student layers 1..m."""
    student_layers: tuple[int, ...] | None = None
    """`random`, `attention`: the student layers to teach, 1..m; None takes all but the last."""
    knowledge: dict[Name, Annotated[float, Field(ge=0)]] = Field(default={"mean": 1.0}, min_length=1)
    """What is taught, each with its weight."""
    normalise: bool = True
    """`cls`, `mean`: the squared distance of unit vectors; false takes the mean squared difference over the width."""
    relation_heads: int | None = Field(default=None, ge=1)
    """Relations: the heads that both models' vectors are cut into; None takes the largest number that divides both."""
    project: Literal["always", "where_widths_differ"] = "always"
    """`cls` and `mean` of both sides to `width`, the student's `hidden` states to the teacher's width."""
    width: int = Field(default=128, ge=1)
    bias: bool = True
    freeze_teacher_projection: bool = False
    """True keeps the teacher's map as initialised, which rules the trivial optimum out."""

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        compared = {*self.knowledge, *((self.match,) if self.selection == "attention" else ())}
        for key, selections in _GOES_WITH.items():
            if key in self.model_fields_set and self.selection not in selections:
                raise ValueError(f"{key} goes with selection {' or '.join(selections)}, not with {self.selection}; "
                                 f"leave {key} out or change the selection")
        for key, kinds in _CONCERNS.items():
            if key in self.model_fields_set and not compared.intersection(kinds):
                raise ValueError(f"{key} concerns {' and '.join(kinds)}, of which `knowledge` names none; leave it out")
        return self


_PROJECT = ("fixed", "random", "attention")
_GOES_WITH = {"mapping": ("fixed",), "resample": ("random",), "match": ("attention",), "grouping": ("grouped",),
              "student_layers": ("random", "attention"), "project": _PROJECT, "width": _PROJECT,
              "freeze_teacher_projection": _PROJECT}
_CONCERNS = {"normalise": ("cls", "mean"), "width": ("cls", "mean"), "freeze_teacher_projection": ("cls", "mean"),
             "project": ("cls", "mean", "hidden"), "bias": ("cls", "mean", "hidden"),
             "relation_heads": ("query_relations", "key_relations", "value_relations")}


def _selection(config: Config, setting: Setting) -> Selection:
    teacher, student = setting.teacher.layers, setting.student.layers
    match config.selection:
        case "fixed":
            mapping = config.mapping
            return fixed(fixed_pairs(mapping, teacher, student) if isinstance(mapping, str)
                         else explicit(mapping, teacher, student))
        case "random":
            return drawn(student_slots(config.student_layers, student), teacher, setting.seed, config.resample)
        case "attention":
            return attentive(student_slots(config.student_layers, student), teacher, config.match)
        case "grouped":
            return grouped(tuple(range(1, student + 1)), groups(config.grouping, range(1, teacher + 1), student))


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when selection, knowledge and the two models do not go together."""
    options = Options(config.normalise, config.project == "always", config.width, config.bias,
                      config.freeze_teacher_projection, config.relation_heads)
    knowledge = {name: config.layer_weight * weight for name, weight in config.knowledge.items()}
    objective = LayerDistillation(_selection(config, setting), knowledge, options, setting, config.label_weight,
                                  config.kd_weight, config.temperature)
    return (Phase("distill", objective),)
