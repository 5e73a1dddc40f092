"""DistilBERT: the teacher's distribution of words, the masked words themselves, and the direction of the last states.

Sanh, Debut, Chaumond and Wolf 2019, "DistilBERT, a distilled version of BERT", section 3. Both models read the same
masked text; with P the real tokens and M the masked ones, both of the whole optimiser step, and H last states,
  CE  = T^2 / |P| sum over P of KL(softmax(z_T / T) || softmax(z_S / T))
  MLM = -1 / |M| sum over M of log softmax(z_S)[word]
  COS = 1 / |P| sum over P of (1 - cos(H_S, H_T))
  L   = ce_weight CE + mlm_weight MLM + cos_weight COS

Deviations from the paper: it gives no weights and no temperature; defaults are the released code's. Where widths
differ, the student's states go through a linear map to the teacher's (an extension). Which layers the student starts
from and how words are masked belong to the student and the corpus.
Released code (transformers-research-projects, distillation) averages over the tokens of a micro-batch, so that short
micro-batches weigh more; here over those of the step.
"""

from pydantic import Field

from kdcore.features import MASKED_LOGITS, MLM_LOGITS, FeatureKey, Features, at_positions
from kdcore.method_config import MethodConfig
from kdcore.mlm_losses import masked_tokens, mlm_kd_loss, mlm_loss, refuse_other_vocabulary, token_kd_loss
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting
from kdcore.projection import Bridge, initialised_from
from kdcore.token_losses import cosine_distance, per_token, real_states


class Config(MethodConfig):
    """Defaults are the released code's; its example for several GPUs weighs each loss 0.33."""

    ce_weight: float = Field(default=5.0, ge=0)
    mlm_weight: float = Field(default=2.0, ge=0)
    cos_weight: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=2.0, gt=0)
    restrict_ce_to_mask: bool = False
    """True compares distributions at the masked tokens alone; the heads then run at these alone."""


class DistilBert(Objective):
    """The three losses."""

    masks_tokens = True

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.temperature = config.temperature
        self.weights = {"ce": config.ce_weight, "mlm": config.mlm_weight, "cos": config.cos_weight}
        self.logits = MASKED_LOGITS if config.restrict_ce_to_mask else MLM_LOGITS
        self.our_states = FeatureKey("hidden", setting.student.layers)
        self.their_states = FeatureKey("hidden", setting.teacher.layers)
        with initialised_from(setting.seed):
            self.bridge = Bridge(setting.student.width, setting.teacher.width, width=None)
        self.needs = Needs(student=frozenset({self.logits, self.our_states}),
                           teacher=frozenset({self.logits, self.their_states}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        masked, mask, step = masked_tokens(batch), student.token_mask, batch.step
        ours, theirs = student[self.logits], teacher[self.logits]
        if self.logits == MASKED_LOGITS:
            ce = mlm_kd_loss(ours, theirs, self.temperature, masked, step)
        else:
            ce = token_kd_loss(ours, theirs, self.temperature, mask, step)
            ours = at_positions(ours, masked.positions)
        our_states, their_states = self.bridge(real_states(student[self.our_states], mask), teacher[self.their_states])
        cos = per_token(cosine_distance(our_states, their_states, mask), mask, step)
        return Loss({"ce": ce, "mlm": mlm_loss(ours, masked, step), "cos": cos}, self.weights)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when the vocabularies differ."""
    refuse_other_vocabulary(setting)
    return (Phase("pretrain", DistilBert(config, setting)),)
