"""MLM-KD: the student learns the teacher's distribution of masked words.

The baseline of Wang et al., NeurIPS 2020, "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of
Pre-Trained Transformers", table of section 4: soft targets of masked language modelling. Both models read the same
masked text; with P its masked tokens, those of the whole optimiser step,
  L = kd_weight T^2 / |P| sum over P of KL(softmax(z_T / T) || softmax(z_S / T)) + mlm_weight MLM

Deviations from the paper: it says neither at which tokens nor at which temperature; masked ones and T = 1 are our
choice, and `tokens: all` takes all real ones. The cross-entropy with the masked words themselves, `mlm`, is in the log
and weighs nothing unless asked to.
Released code: none.
"""

from typing import Literal

from pydantic import Field

from kdcore.features import MASKED_LOGITS, MLM_LOGITS, Features, at_positions
from kdcore.method_config import MethodConfig
from kdcore.mlm_losses import masked_tokens, mlm_kd_loss, mlm_loss, refuse_other_vocabulary, token_kd_loss
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(MethodConfig):
    """Defaults are the paper's: no hard labels."""

    kd_weight: float = Field(default=1.0, ge=0)
    mlm_weight: float = Field(default=0.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    tokens: Literal["masked", "all"] = "masked"
    """Where distributions are compared; `all` runs the head at every token."""


class MlmKd(Objective):
    """KD loss over the vocabulary and the language-model loss."""

    masks_tokens = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.weights = {"kd": config.kd_weight, "mlm": config.mlm_weight}
        self.key = MASKED_LOGITS if config.tokens == "masked" else MLM_LOGITS
        self.needs = Needs(student=frozenset({self.key}), teacher=frozenset({self.key}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        masked, ours, theirs = masked_tokens(batch), student[self.key], teacher[self.key]
        if self.key == MASKED_LOGITS:
            kd = mlm_kd_loss(ours, theirs, self.temperature, masked, batch.step)
        else:
            kd = token_kd_loss(ours, theirs, self.temperature, student.token_mask, batch.step)
            ours = at_positions(ours, masked.positions)
        return Loss({"kd": kd, "mlm": mlm_loss(ours, masked, batch.step)}, self.weights)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the vocabularies differ."""
    refuse_other_vocabulary(setting)
    return (Phase("pretrain", MlmKd(config)),)
