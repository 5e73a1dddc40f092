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

from typing import Literal

from pydantic import Field

from kdcore.composition import LayerDistillation, Options
from kdcore.config import MethodConfig
from kdcore.mapping import student_slots
from kdcore.objective import Phase, Setting
from kdcore.selection import drawn


class Config(MethodConfig):
    """Weights and draws are RAIL-KD's, as in `rail_kd_l`; that both kinds weigh the same is TinyBERT's."""

    label_weight: float = Field(default=1 / 3, ge=0)
    """lambda1"""
    kd_weight: float = Field(default=1 / 3, ge=0)
    """lambda2"""
    rail_weight: float = Field(default=1 / 3, ge=0)
    """lambda3"""
    temperature: float = Field(default=1.0, gt=0)
    resample: Literal["epoch", "step"] = "epoch"
    student_layers: tuple[int, ...] | None = None
    """The student layers to teach, 1..m; None takes all but the last."""


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths, `student_layers` or head counts do not fit together."""
    slots = student_slots(config.student_layers, setting.student.layers)
    selection = drawn(slots, setting.teacher.layers, setting.seed, config.resample)
    objective = LayerDistillation(selection, dict.fromkeys(("hidden", "attention_scores"), config.rail_weight),
                                  Options(), setting, config.label_weight, config.kd_weight, config.temperature)
    return (Phase("distill", objective),)
