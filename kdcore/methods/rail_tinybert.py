"""RAIL with TinyBERT's knowledge: token states and attention scores of teacher layers that are drawn at random.

An extension of ours, neither paper's method. RAIL-KD (Haidar et al., Findings of NAACL 2022) draws the layers, see
`rail_kd_l`; what is compared is that of TinyBERT's Transformer layers (Jiao et al., Findings of EMNLP 2020) in place of
token means: with H the states, S the attention scores before the softmax, over the m-1 taught layers i,
  L = lambda1 CE + lambda2 T^2 KL + lambda3 sum_i [ mean (H_S,i W + b - H_T,i)^2 + mean (S_S,i - S_T,i)^2 ]
The map W to the teacher's width is shared by all layers and learned also where widths agree, as in TinyBERT's code.
The same is `layer_kd` with `knowledge: {hidden: 1, attention_scores: 1}`.

Deviations from TinyBERT: layers are intermediate and drawn, without embeddings and last layer; one phase with labels
and outputs in place of two; means are over the real tokens (pairs of tokens) of each example, where TinyBERT's code
takes them over the whole batch, padding included, so that an example's value would depend on its company.
Both models need the same number of heads and the same tokenizer.
"""

from kdcore.composition import RailConfig, rail
from kdcore.objective import Phase, Setting


class Config(RailConfig):
    """Weights and draws are RAIL-KD's, as in `rail_kd_l`; that both kinds weigh the same is TinyBERT's."""


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths, `student_layers` or head counts do not fit together."""
    return (Phase("distill", rail(config, setting, ("hidden", "attention_scores"))),)
