"""RAIL with MiniLM's knowledge: attention and value relations of teacher layers that are drawn at random.

An extension of ours, neither paper's method. RAIL-KD (Haidar et al., Findings of NAACL 2022) draws the layers, see
`rail_kd_l`; what is compared is MiniLM's (Wang et al., NeurIPS 2020, sections 3.1 and 3.2) in place of token means:
with A = softmax(q k' / sqrt d) and V = softmax(v v' / sqrt d) in each head, over the m-1 taught layers i,
  L = lambda1 CE + lambda2 T^2 KL + lambda3 sum_i [ KL(A_T,i || A_S,i) + KL(V_T,i || V_S,i) ]
averaged over heads and real tokens. Widths may differ, nothing is projected, and nothing is learned beside the student.
The same is `layer_kd` with `knowledge: {attention: 1, value_relations: 1}`.

Deviations from MiniLM: layers are intermediate and drawn, where it takes the last one; fine-tuning with labels and
outputs, where it pre-trains. Both models need the same number of heads and the same tokenizer.
"""

from kdcore.composition import RailConfig, rail
from kdcore.objective import Phase, Setting


class Config(RailConfig):
    """Weights and draws are RAIL-KD's, as in `rail_kd_l`; that both kinds weigh the same is MiniLM's."""


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths, `student_layers` or head counts do not fit together."""
    return (Phase("distill", rail(config, setting, ("attention", "value_relations"))),)
