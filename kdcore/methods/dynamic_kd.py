"""Dynamic KD: how uncertain the student is of an example decides whether, or how, the teacher teaches it.

Li, Lin, Ren, Li, Zhou and Sun, EMNLP 2021, "Dynamic Knowledge Distillation for Pre-trained Language Models". With the
student's probabilities p at T = 1 and u = H(p) / ln C, neither with a gradient:
  data selection  L = CE + mean of D over the r B most uncertain examples of a batch of B
  supervision     L = CE + (1 - u) D + u R    R = sum over layers of mean (unit(H_S) - unit(H_T))^2
D is the mean squared difference of logits, or T^2 KL. R compares token states of the embeddings and of student layers
1..m with every n/m-th of the teacher. Examples are ranked by entropy, margin p_1 - p_2, or confidence p_1.

Deviations from the paper: one example at least is selected, so that a short last batch has a teacher. Padding counts in
no mean. Regression, whose one output says nothing of uncertainty, learns from all examples, and has no `supervision`.
Extensions: a linear map of the student's token states where widths differ. The teacher adoption of the paper is left
out: it weighs two teachers of different size against each other, while an objective reads one teacher's features, for
several the features of their average.
Released code (lancopku/DynamicKD) differs: R is averaged over padding too and its vectors have unit length along the
sequence in one mode; u is not detached where the supervision is adjusted; the teacher is a part of the student, with
dropout, and saved with it. There only selected examples reach the teacher; here a stored teacher costs nothing.
"""

import math
from typing import Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from kdcore.errors import UserError
from kdcore.features import LOGITS, Features, layer_keys
from kdcore.losses import kd_loss, label_loss, squared_distance, unit, widened
from kdcore.mapping import uniform
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import Projection, initialised_from
from kdcore.token_losses import hidden_distance, real_states

Measure = Literal["entropy", "margin", "confidence"]


class Config(MethodConfig):
    """Defaults are the released code's; the abstract claims as much for a ratio of 0.1."""

    adapt: Literal["data", "supervision"] = "data"
    """What uncertainty decides: which examples have a teacher, or what each learns from it."""
    measure: Measure = "entropy"
    """`data`: what ranks the examples."""
    ratio: float = Field(default=0.5, gt=0, le=1)
    """`data`: r"""
    swap: bool = False
    """`supervision`: true weighs D by u and R by 1 - u."""
    label_weight: float = Field(default=1.0, ge=0)
    kd_weight: float = Field(default=1.0, ge=0)
    """Of D, and of R with it."""
    distance: Literal["mse", "kl"] = "mse"
    """D"""
    temperature: float = Field(default=5.0, gt=0)
    """`kl`"""

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        strangers = {"measure", "ratio"} if self.adapt == "supervision" else {"swap"}
        for key in sorted(strangers & self.model_fields_set):
            raise ValueError(f"{key} is of no use with adapt: {self.adapt}; leave it out")
        return self


class DataSelection(Objective):
    """Label loss for all, the teacher's logits for the uncertain."""

    couples_examples = True

    def __init__(self, config: Config, regression: bool) -> None:
        super().__init__()
        self.config = config
        self.regression = regression
        self.needs = Needs(student=frozenset({LOGITS}), teacher=frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        parts = {"label": label_loss(student.logits, batch.labels, self.regression),
                 "kd": _distance(student, teacher, self.config, self.regression)}
        examples = len(batch.ids)
        taught = torch.ones_like(parts["kd"])
        if not self.regression:
            chosen = most_uncertain(student.logits, self.config.measure, self.config.ratio)
            taught = torch.zeros_like(taught).index_fill(0, chosen, examples / len(chosen))
        return Loss(parts, {"label": self.config.label_weight, "kd": self.config.kd_weight * taught})


class Supervision(Objective):
    """Label loss, and of the teacher the logits where the student is sure, the states where it is not."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        if setting.regression:
            raise UserError("methods.dynamic_kd: adapt: supervision weighs by the uncertainty of classes, which scores "
                            "do not have; set adapt: data, which then learns from all examples")
        self.config = config
        layers = ((0, 0), *uniform(setting.teacher.layers, setting.student.layers))
        self.student_keys = layer_keys("hidden", [student for student, _ in layers])
        self.teacher_keys = layer_keys("hidden", [teacher for _, teacher in layers])
        ours, theirs = setting.student.width, setting.teacher.width
        with initialised_from(setting.seed):
            self.map = Projection(ours, theirs, normalise=False) if ours != theirs else nn.Identity()
        self.needs = Needs(frozenset({LOGITS, *self.student_keys}), frozenset({LOGITS, *self.teacher_keys}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        mask = student.token_mask
        ours = self.map(real_states(torch.stack([student[key] for key in self.student_keys], dim=1), mask))
        theirs = torch.stack([teacher[key] for key in self.teacher_keys], dim=1)
        parts = {"label": label_loss(student.logits, batch.labels, regression=False),
                 "kd": _distance(student, teacher, self.config, regression=False),
                 "representation": hidden_distance(unit(ours), unit(theirs), mask).sum(dim=1)}
        unsure = entropy(student.logits) / math.log(student.logits.shape[1])
        logits, states = (unsure, 1 - unsure) if self.config.swap else (1 - unsure, unsure)
        taught = {"kd": self.config.kd_weight * logits, "representation": self.config.kd_weight * states}
        return Loss(parts, {"label": self.config.label_weight, **taught}, {"uncertainty": unsure.mean()})


def entropy(logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
    """Of the softmax, in nats, as a constant."""
    return torch.distributions.Categorical(logits=widened(logits.detach()), validate_args=False).entropy()


def most_uncertain(logits: Float[Tensor, "b c"], measure: Measure, ratio: float) -> Tensor:
    """The places [max(1, floor(ratio b))] of the most uncertain examples, the most uncertain one first."""
    likeliest = widened(logits.detach()).softmax(dim=1).topk(2, dim=1).values
    match measure:
        case "entropy":
            doubt = entropy(logits)
        case "margin":
            doubt = likeliest[:, 1] - likeliest[:, 0]
        case "confidence":
            doubt = -likeliest[:, 0]
    return doubt.topk(max(1, int(ratio * len(doubt)))).indices


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when `supervision` meets scores, or a depth that does not divide the teacher's."""
    objective = DataSelection(config, setting.regression) if config.adapt == "data" else Supervision(config, setting)
    return (Phase("distill", objective),)


def _distance(student: Features, teacher: Features, config: Config, regression: bool) -> Float[Tensor, " b"]:
    if config.distance == "kl":
        return kd_loss(student.logits, teacher.logits, config.temperature, regression)
    return squared_distance(student.logits, teacher.logits) / student.logits.shape[1]
