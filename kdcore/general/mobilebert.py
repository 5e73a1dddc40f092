"""MobileBERT: layer by layer the student learns the teacher's states and attention, then masked words.

Sun, Yu, Song, Liu, Yang and Zhou, ACL 2020, "MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited Devices",
sections 3.4 and 3.5. Both models have as many layers and read the same masked text. In layer l, with token states H
and attention distributions A of h heads, over the real tokens of the optimiser step,
  FMT_l = mean (H_T,l - H_S,l)^2,  AT_l = mean over heads and tokens of KL(A_T,l || A_S,l)
  PD    = alpha MLM + (1 - alpha) KL(softmax(z_T) || softmax(z_S)) at the masked tokens
`schedule` orders them: `auxiliary` minimises PD and all layers together; `joint` all layers, then PD; `progressive` one
layer after the other, then PD. While layer l learns, those above it are frozen, those below learn slowly, embeddings
not at all: they are to be the teacher's, as those of a student are that starts from its layers.

Deviations from the paper: no next-sentence prediction, since the corpus has no such labels; the KL divergence in place
of the soft cross-entropy, which differs by a constant. Where widths differ, the student's states go through a linear
map per layer (an extension): the paper makes teacher and student equally wide by bottlenecks.
Released code (google-research, mobilebert) compares layer-normalised states (`normalise: true`) with weight 100, adds
the differences of their means and variances with weights 5000 and 5, divides all by the number of layers, does not
leave out padding, has no dropout, and triples the learning rate of the layer that learns.
"""

from collections.abc import Sequence
from typing import Literal, Self

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from kdcore.errors import UserError
from kdcore.features import MASKED_LOGITS, FeatureKey, Features, layer_keys
from kdcore.losses import widened
from kdcore.method_config import MethodConfig
from kdcore.mlm_losses import masked_tokens, mlm_kd_loss, mlm_loss, refuse_other_vocabulary
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting, summed_over_layers
from kdcore.projection import Projection, initialised_from
from kdcore.token_losses import attention_divergence, hidden_distance, per_token, probabilities, real_states


class Config(MethodConfig):
    """Defaults are the paper's."""

    schedule: Literal["auxiliary", "joint", "progressive"] = "progressive"
    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of the masked words; their distribution weighs 1 - alpha."""
    feature_weight: float = Field(default=1.0, ge=0)
    attention_weight: float = Field(default=1.0, ge=0)
    normalise: bool = False
    """True compares layer-normalised states."""
    transfer_share: float = Field(default=0.32, gt=0, lt=1)
    """`joint`, `progressive`: the layers' part of the training's length, which they share equally; PD has the rest."""
    lower_rate: float = Field(default=0.1, ge=0)
    """`progressive`: factor of the learning rate of the layers below the one that learns; 0 is the strict variant."""
    freeze_embeddings: bool | None = None
    """`progressive`: while layers learn. False has embeddings learn with layer 1, and then as a layer below. None is
    true where student and teacher are equally wide, so that the embeddings can be the teacher's."""

    @model_validator(mode="after")
    def _all_is_used(self) -> Self:
        unused = {"auxiliary": ("transfer_share", "lower_rate", "freeze_embeddings"),
                  "joint": ("lower_rate", "freeze_embeddings"), "progressive": ()}[self.schedule]
        for key in unused:
            if key in self.model_fields_set:
                raise ValueError(f"{key} does nothing with schedule: {self.schedule}; leave it out")
        return self


class MobileBert(Objective):
    """The losses of some layers, and of masked words; the log has every layer's summand."""

    masks_tokens = True

    def __init__(self, config: Config, setting: Setting, layers: Sequence[int], predicts: bool) -> None:
        """`predicts`: whether masked words are learned."""
        super().__init__()
        self.layers = tuple(layers)
        self.predicts = predicts
        self.normalise = config.normalise
        self.weights = ({"feature_map": config.feature_weight, "attention": config.attention_weight} if layers else {})
        self.weights |= {"mlm": config.alpha, "kd": 1 - config.alpha} if predicts else {}
        with initialised_from(setting.seed):
            self.maps = nn.ModuleDict({str(layer): _map(setting) for layer in layers})
        keys = {*layer_keys("hidden", layers), *layer_keys("scores", layers), *([MASKED_LOGITS] if predicts else [])}
        self.needs = Needs(student=frozenset(keys), teacher=frozenset(keys))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        mask, step = student.token_mask, batch.step
        layers: dict[str, dict[int, Tensor]] = {}
        if self.layers:
            layers["feature_map"] = {layer: per_token(self._gap(student, teacher, layer), mask, step)
                                     for layer in self.layers}
            layers["attention"] = {
                key.layer: per_token(attention_divergence(student[key], probabilities(teacher[key], mask), mask),
                                     mask, step) for key in layer_keys("scores", self.layers)}
        parts, summands = summed_over_layers(layers)
        if self.predicts:
            masked, ours = masked_tokens(batch), student[MASKED_LOGITS]
            parts["mlm"] = mlm_loss(ours, masked, step)
            parts["kd"] = mlm_kd_loss(ours, teacher[MASKED_LOGITS], 1.0, masked, step)
        return Loss(parts, self.weights, summands)

    def _gap(self, student: Features, teacher: Features, layer: int) -> Float[Tensor, " b"]:
        key, mask = FeatureKey("hidden", layer), student.token_mask
        ours, theirs = self.maps[str(layer)](real_states(student[key], mask)), teacher[key]
        if self.normalise:
            ours, theirs = (F.layer_norm(widened(side), side.shape[-1:], eps=1e-12) for side in (ours, theirs))
        return hidden_distance(ours, theirs, mask)


def _map(setting: Setting) -> nn.Module:
    student, teacher = setting.student.width, setting.teacher.width
    return nn.Identity() if student == teacher else Projection(student, teacher, normalise=False)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase, two, or one per layer and one; raises UserError when depths, head counts or vocabularies differ."""
    student, teacher = setting.student, setting.teacher
    for what, ours, theirs in (("layers", student.layers, teacher.layers), ("heads", student.heads, teacher.heads)):
        if ours != theirs:
            raise UserError(f"each student layer learns from the teacher layer at its place, head by head, but the "
                            f"teacher has {theirs} {what} and the student {ours}; use a student of {theirs} {what}, or "
                            "the method minilmv2, which leaves both free")
    refuse_other_vocabulary(setting)
    layers = range(1, student.layers + 1)
    if config.schedule == "auxiliary":
        return (Phase("pretrain", MobileBert(config, setting, layers, predicts=True)),)
    share = config.transfer_share
    pretrain = Phase("pretrain", MobileBert(config, setting, (), predicts=True), share=1 - share)
    if config.schedule == "joint":
        return Phase("layers", MobileBert(config, setting, layers, predicts=False), share=share), pretrain
    transfer = [Phase(f"layer-{layer}", MobileBert(config, setting, (layer,), predicts=False),
                      share=share / len(layers), layer_rates=_rates(config, setting, layer)) for layer in layers]
    return *transfer, pretrain


def _rates(config: Config, setting: Setting, layer: int) -> tuple[float, ...]:
    """Of the embeddings and of each layer while `layer` learns."""
    same_width = setting.student.width == setting.teacher.width
    frozen = same_width if config.freeze_embeddings is None else config.freeze_embeddings
    embeddings = 0.0 if frozen else 1.0 if layer == 1 else config.lower_rate
    return embeddings, *[config.lower_rate] * (layer - 1), 1.0, *[0.0] * (setting.student.layers - layer)
