"""Knowledge mix: types of knowledge side by side with fixed weights, or weighed or chosen at random.

The baselines of Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models
via Knowledge Selection", for the selection that `ksm` learns:
  L = sum over types m of a_m w_m L_m
Types are response, feature, relation and fine-tuning, see `kdcore/knowledge_types.py`. Fixed-All is a = 1 with tuned
weights w; the fixed subsets name the types to keep. Random-Soft draws a from 0..1 for each step; Random-Hard, which is
Random-All of the probing experiments, one of the non-empty subsets of types; Random-One does so in the first epoch
only, and takes all types afterwards.

Deviations from the paper: subsets are equally probable, which the paper does not say; Random-One's later epochs follow
its description. Draws depend on seed and step alone. A step reads and computes only what it takes.
Released code: none.
"""

import random
from typing import Literal

from kdcore.features import Features
from kdcore.knowledge_types import KnowledgeConfig, KnowledgeTypes, Type
from kdcore.objective import Batch, Loss, Needs, Objective, Phase, Progress, Setting


class Config(KnowledgeConfig):
    """The defaults are Fixed-All before its weights are tuned."""

    selection: Literal["fixed", "random_soft", "random_hard", "random_one"] = "fixed"


class KnowledgeMix(Objective):
    """The losses of the types that are taken in a step."""

    def __init__(self, config: Config, setting: Setting) -> None:
        super().__init__()
        self.config = config
        self.seed = setting.seed
        self.knowledge = KnowledgeTypes(config, setting)
        self.needs = self.knowledge.needs(config.types)

    def needs_at(self, progress: Progress) -> Needs:
        return self.knowledge.needs(self._taken(progress))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        action, taken = self.action(progress), self._taken(progress)
        parts = self.knowledge(student, teacher, batch, taken)
        weights = {str(name): action[name] * self.config.knowledge[name] for name in taken}
        drawn = self.config.selection != "fixed"
        return Loss(parts, weights, {f"action/{name}": value for name, value in action.items()} if drawn else {})

    def action(self, progress: Progress) -> dict[Type, float]:
        """a: 0 for types that are left out of this step."""
        types, selection = self.config.types, self.config.selection
        # A text seed is hashed with SHA-512: neighbouring seeds and steps share nothing.
        generator = random.Random(f"{self.seed} knowledge {progress.step}")
        if selection == "random_soft":
            return {name: generator.random() for name in types}
        if selection == "random_hard" or (selection == "random_one" and progress.epoch == 0):
            subset = generator.randrange(1, 2 ** len(types))
            return {name: float(subset >> place & 1) for place, name in enumerate(types)}
        return dict.fromkeys(types, 1.0)

    def _taken(self, progress: Progress) -> tuple[Type, ...]:
        return tuple(name for name, value in self.action(progress).items() if value)


def phases(config: Config, setting: Setting) -> tuple[Phase, ...]:
    """One phase; raises UserError when depths and mapping do not fit together."""
    return (Phase("distill", KnowledgeMix(config, setting)),)
