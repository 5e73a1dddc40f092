"""DKD: the teacher's outputs in two parts with weights of their own, the target class and the classes beside it.

Zhao, Cui, Song, Qiu and Liang, CVPR 2022, "Decoupled Knowledge Distillation", section 3. With the probabilities p at
temperature T, the label t, and q the p of all classes but t, scaled to sum to 1:
  TCKD = T^2 KL((p_T[t], 1 - p_T[t]) || (p_S[t], 1 - p_S[t]))    NCKD = T^2 KL(q_T || q_S)
  KD = TCKD + (1 - p_T[t]) NCKD    L = label_weight CE + alpha TCKD + beta NCKD
KD teaches the less about the other classes, the surer the teacher is of the label; beta does not depend on that.

Two classes leave one class beside the label: q is 1, NCKD is zero and beta without effect. What remains is CE and
alpha KD, which is `vanilla_kd` with alpha / (label_weight + alpha), times label_weight + alpha.

Deviations from the paper: regression, which it does not treat, takes the squared difference of the outputs with alpha
and ignores T and beta. Alpha and beta start small and grow with each step over a share of the training. An example
without a label has the teacher's most probable class in its place.
Released code (mdistiller) differs: there they grow with each epoch, over 20 of 240; and the label is left out of q by
lowering its logit by 1000, where q has one class less here.
"""

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from kdcore.features import LOGITS, Features
from kdcore.losses import NO_LABEL, kd_loss, label_loss, same_shape, widened
from kdcore.method_config import MethodConfig
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(MethodConfig):
    """Defaults: the released code for CIFAR-100 with its 100 classes.

    Other published settings: beta 2 and 6 there; on ImageNet T = 1, beta 0.5 or 2, no warm-up.
    """

    label_weight: float = Field(default=1.0, ge=0)
    alpha: float = Field(default=1.0, ge=0)
    """Weight of TCKD, and of the squared difference in regression."""
    beta: float = Field(default=8.0, ge=0)
    """Weight of NCKD."""
    temperature: float = Field(default=4.0, gt=0)
    warmup_share: float = Field(default=0.083, ge=0, le=1)
    """Share of the steps over which the weights of the teacher's parts grow linearly; 0.083 are 20 of 240 epochs."""


class Dkd(Objective):
    """Label loss, target-class KD and non-target-class KD."""

    def __init__(self, config: Config, regression: bool) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.warmup_share = config.warmup_share
        self.regression = regression
        self.label_weight = config.label_weight
        self.weights = {"kd": config.alpha} if regression else {"tckd": config.alpha, "nckd": config.beta}
        self.needs = Needs(student=frozenset({LOGITS}), teacher=frozenset({LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        parts = {"label": label_loss(student.logits, batch.labels, self.regression)}
        if self.regression:
            parts["kd"] = kd_loss(student.logits, teacher.logits, self.temperature, self.regression)
        else:
            targets = torch.where(batch.labels == NO_LABEL, teacher.logits.argmax(dim=1), batch.labels)
            parts["tckd"], parts["nckd"] = decoupled_kd(student.logits, teacher.logits, targets, self.temperature)
        grown = min(1.0, (progress.step + 1) / max(1.0, self.warmup_share * progress.total_steps))
        taught = {name: grown * weight for name, weight in self.weights.items()}
        return Loss(parts, {"label": self.label_weight, **taught})


def decoupled_kd(
    student: Float[Tensor, "b c"], teacher: Float[Tensor, "b c"], labels: Int[Tensor, " b"], temperature: float
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """TCKD and NCKD, both with the factor T^2; NCKD of two classes is zero.

    Raises ValueError when shapes do not fit.
    """
    same_shape(student, teacher)
    if labels.shape != student.shape[:1]:
        raise ValueError(f"labels have shape {list(labels.shape)}, expected {list(student.shape[:1])}")
    ours, theirs = (_decoupled(logits, labels, temperature) for logits in (student, teacher))
    target, others = (temperature**2 * F.kl_div(s, t, reduction="none", log_target=True).sum(dim=1)
                      for s, t in zip(ours, theirs, strict=True))
    return target, others


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase."""
    return (Phase("distill", Dkd(config, setting.regression)),)


def _decoupled(
    logits: Float[Tensor, "b c"], labels: Int[Tensor, " b"], temperature: float
) -> tuple[Float[Tensor, "b 2"], Float[Tensor, "b c-1"]]:
    """Log-probabilities of the label against all other classes, and of these among themselves.

    The sum over the others is taken of their logits: 1 - p would lose all digits where the teacher is sure.
    """
    scaled = widened(logits) / temperature
    label = labels[:, None]
    places = torch.arange(scaled.shape[1] - 1, device=labels.device)
    others = scaled.gather(1, places + (places >= label))
    pair = torch.cat([scaled.gather(1, label), others.logsumexp(dim=1, keepdim=True)], dim=1)
    return F.log_softmax(pair, dim=1), F.log_softmax(others, dim=1)
