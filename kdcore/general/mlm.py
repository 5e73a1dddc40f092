"""MLM: the student learns masked words from text alone, without a teacher.

Devlin, Chang, Lee and Toutanova 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.1: the
cross-entropy of the words that were masked, averaged over the masked tokens. The baseline of general distillation; and
what gives an encoder without a masked-language-model head one, so that it can teach by `mlm_kd` or `distilbert`.

Deviations from the paper: no next-sentence prediction. How words are masked belongs to the corpus.
Released code (google-research/bert) averages over 20 predictions per row at most, counted per batch; here over all
masked tokens of the optimiser step, so that micro-batches and ranks change nothing.
"""

from kdcore.features import MASKED_LOGITS, Features
from kdcore.method_config import MethodConfig
from kdcore.mlm_losses import masked_tokens, mlm_loss
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(MethodConfig):
    """Nothing to choose."""


class Mlm(Objective):
    """The language-model loss."""

    masks_tokens = True

    def __init__(self) -> None:
        super().__init__()
        self.needs = Needs(student=frozenset({MASKED_LOGITS}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        return Loss({"mlm": mlm_loss(student[MASKED_LOGITS], masked_tokens(batch), batch.step)}, {"mlm": 1.0})


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase."""
    return (Phase("pretrain", Mlm()),)
