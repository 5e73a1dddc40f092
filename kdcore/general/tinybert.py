"""TinyBERT, its general distillation: every student layer learns the states and the attention of one of the teacher's.

Jiao et al., Findings of EMNLP 2020, "TinyBERT: Distilling BERT for Natural Language Understanding", section 3.2: the
losses of embeddings, token states and attention scores on unlabelled text, see `kdcore/intermediate.py`, with all m
layers and without the prediction. The teacher is pre-trained, not fine-tuned. What comes out is the student of
`tinybert` in a study, which distils for a task.

Deviations from the paper: one map for embeddings and all layers, as in the released code, where the formulas have two
without bias: `projection: embeddings_apart`. Pairs of layers of one's own and masked text are extensions.
Released code (huawei-noah/Pretrained-Language-Model) takes means over the padded batch, leaves out the last steps of
an epoch where they are not full, and reads rows as they are, except that one token of each is masked by an oversight:
its masking is set to 0, but rounded up to a token.
Both models need the same number of heads and the same tokenizer.
"""

from kdcore.intermediate import Intermediate, IntermediateConfig
from kdcore.objective import Phase, Setting


class Config(IntermediateConfig):
    """Defaults are the released code's."""

    masked: bool = False
    """True reads text with words masked, as the section `masking` of the study says; nothing predicts them."""


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths, widths or head counts do not fit together."""
    return (Phase("pretrain", Intermediate(config, setting, masks_tokens=config.masked)),)
