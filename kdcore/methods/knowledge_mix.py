"""Knowledge mix: types of knowledge side by side with fixed weights, or weighed or chosen at random.

The baselines of Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models
via Knowledge Selection", for the selection that `ksm` learns:
  L = sum over types m of a_m w_m L_m
Types are response, feature, relation and fine-tuning (`kdcore/knowledge_types.py`), and the objectives of other methods
where `knowledge` names them (`kdcore/choice.py`). Fixed-All is a = 1 with tuned
weights w; the fixed subsets name the types to keep. Random-Soft draws a from 0..1 for each step; Random-Hard, which is
Random-All of the probing experiments, one of the non-empty subsets of types; Random-One does so in the first epoch
only, and takes all types afterwards.

Deviations from the paper: subsets are equally probable, which the paper does not say; Random-One's later epochs follow
its description. Draws depend on seed and step alone. A step reads and computes only what it takes.
Released code: none.
"""

import random
from typing import Literal

from kdcore.choice import Choice
from kdcore.features import Features
from kdcore.knowledge_types import KnowledgeConfig
from kdcore.objective import Batch, Loss, Phase, Progress, Setting


class Config(KnowledgeConfig):
    """The defaults are Fixed-All before its weights are tuned."""

    selection: Literal["fixed", "random_soft", "random_hard", "random_one"] = "fixed"


class KnowledgeMix(Choice):
    """The losses of the candidates that are taken in a step."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__(config, setting)
        self.selection = config.selection

    def taken(self, progress: Progress) -> tuple[str, ...]:
        return tuple(name for name, value in self.action(progress).items() if value)

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        action, taken = self.action(progress), self.taken(progress)
        parts, found = self.losses(taken, student, teacher, batch, progress)
        weights = {name: action[name] * self.weights[name] for name in taken}
        if self.selection != "fixed":
            found |= {f"action/{name}": value for name, value in action.items()}
        return Loss(parts, weights, found)

    def action(self, progress: Progress) -> dict[str, float]:
        """a: 0 for candidates that are left out of this step."""
        # A text seed is hashed with SHA-512: neighbouring seeds and steps share nothing.
        generator = random.Random(f"{self.setting.seed} knowledge {progress.step}")
        if self.selection == "random_soft":
            return {name: generator.random() for name in self.names}
        if self.selection == "random_hard" or (self.selection == "random_one" and progress.epoch == 0):
            subset = generator.randrange(1, 2 ** len(self.names))
            return {name: float(subset >> place & 1) for place, name in enumerate(self.names)}
        return dict.fromkeys(self.names, 1.0)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths and mapping do not fit together."""
    return (Phase("distill", KnowledgeMix(config, setting)),)
