"""What objectives have in common that choose among others: types of knowledge, and objectives of other methods.

Wang et al., Findings of EMNLP 2022, "Improved Knowledge Distillation for Pre-trained Language Models via Knowledge
Selection", choose among four types; any objective may stand beside or in place of them. A borrowed objective is its
method's weighted sum without the label loss, which is a type of its own. It keeps its state, reads what it needs in a
step, and is told what happens to the student. What is not chosen in a step is neither read nor computed where that is
known beforehand, and then hears nothing of the step.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kdcore import methods
from kdcore.errors import UserError
from kdcore.features import Features
from kdcore.knowledge_types import Borrowed, KnowledgeConfig, KnowledgeTypes
from kdcore.objective import Batch, Examine, Needs, Objective, Phase, Progress, Setting, TeacherOf

T = TypeVar("T")
LABEL = "label"
"""What all methods call the part that is the label loss."""

NOTHING = Needs(frozenset())


class Choice(Objective):
    """Abstract: candidates by name, types first; `losses` and `taken` are for `forward` to use and to narrow."""

    def __init__(self, config: KnowledgeConfig, setting: Setting, always: Needs = NOTHING) -> None:
        """`always` is read in every step, whatever is chosen.

        Raises UserError when a candidate does not fit the two models, or cannot be one.
        """
        super().__init__()
        self.setting = setting
        self.always = always
        self.borrowed = config.borrowed
        self.weights = config.weights
        self.names = tuple(self.weights)
        self.knowledge = KnowledgeTypes(config, setting)
        self.objectives = nn.ModuleList(self._build(name) for name in self.borrowed)
        self.couples_examples |= any(objective.couples_examples for _, objective in self._borrowing())
        self.alarms = tuple(replace(alarm, diagnostic=f"{name}/{alarm.diagnostic}")
                            for name, objective in self._borrowing() for alarm in objective.alarms)
        self.needs = self.read(self.names)

    def taken(self, progress: Progress) -> tuple[str, ...]:
        """The candidates that a step may choose from, as far as it is known before it."""
        return self.names

    def read(self, names: Collection[str], progress: Progress | None = None) -> Needs:
        """What is read for these candidates in a step, or in any."""
        parts = [self.always, self.knowledge.needs(tuple(name for name in self.knowledge.types if name in names))]
        parts += [objective.needs if progress is None else objective.needs_at(progress)
                  for _, objective in self._borrowing(names)]
        return Needs(frozenset().union(*(part.student for part in parts)),
                     frozenset().union(*(part.teacher for part in parts)))

    def losses(
        self, names: Collection[str], student: Features, teacher: Features, batch: Batch, progress: Progress
    ) -> tuple[dict[str, Float[Tensor, " b"]], dict[str, float | Tensor]]:
        """The losses of these candidates, in the order of `names` of all, and diagnostics of the borrowed ones."""
        types = tuple(name for name in self.knowledge.types if name in names)
        parts: dict[str, Tensor] = dict(self.knowledge(student, teacher, batch, types))
        found: dict[str, float | Tensor] = {}
        for name, objective in self._borrowing(names):
            loss = objective(student, teacher, batch, progress)
            taught = {part: value for part, value in loss.parts.items() if part != LABEL}
            parts[name] = torch.stack([loss.weights[part] * value for part, value in taught.items()]).sum(dim=0)
            found |= {f"{name}/{part}": value.detach().mean() for part, value in taught.items()}
            found |= _named(name, loss.diagnostics)
        return parts, found

    def reset(self) -> None:
        """Put all that learns or remembers back to what it was at the start, for another student."""
        self.knowledge.reset()
        for name, objective in self._borrowing():
            objective.load_state_dict(self._build(name).state_dict())

    def needs_at(self, progress: Progress) -> Needs:
        return self.read(self.taken(progress), progress)

    def main_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.knowledge.parameters()
        for _, objective in self._borrowing():
            yield from objective.main_parameters()

    def before_steps(self, examine: Examine) -> None:
        for _, objective in self._borrowing():
            objective.before_steps(examine)

    def before_epoch(self, progress: Progress, teacher: TeacherOf) -> None:
        for _, objective in self._borrowing():
            objective.before_epoch(progress, teacher)

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for name, objective in self._borrowing(self.taken(progress)):
            found |= _named(name, objective.after_step(progress, examine))
        return found

    def after_steps(self, examine: Examine) -> Mapping[str, float]:
        found: dict[str, float] = {}
        for name, objective in self._borrowing():
            found |= _named(name, objective.after_steps(examine))
        return found

    def _borrowing(self, names: Collection[str] | None = None) -> Iterator[tuple[str, Objective]]:
        """The borrowed objectives, of these candidates or all."""
        for name, objective in zip(self.borrowed, self.objectives, strict=True):
            if names is None or name in names:
                assert isinstance(objective, Objective)
                yield name, objective

    def _build(self, name: str) -> Objective:
        borrowed = self.borrowed[name]
        try:
            return _objective(borrowed, self.setting)
        except UserError as error:
            told = str(error).removeprefix(f"methods.{borrowed.method}").removeprefix(": ").strip()
            raise UserError(f"knowledge.{name}: {told}") from None


def _objective(borrowed: Borrowed, setting: Setting) -> Objective:
    """The method's objective; raises UserError when it is none that could be one of several."""
    method = borrowed.method
    phases: tuple[Phase, ...] = methods.load(method).phases(borrowed.settings, setting)
    if len(phases) > 1:
        raise UserError(f"{method} has the phases {', '.join(phase.name for phase in phases)}, one after another, but "
                        "what is to choose from is there in every step; name a method of one phase")
    (phase,) = phases
    if phase != Phase(phase.name, phase.objective):
        raise UserError(f"{method} has a training of its own (epochs, rates or what is kept), which it cannot have "
                        "beside others; name another method")
    if not phase.objective.needs.teacher:
        raise UserError(f"{method} learns from labels alone, which is the type `label`; name that")
    return phase.objective


def _named(name: str, values: Mapping[str, T]) -> dict[str, T]:
    return {f"{name}/{key}": value for key, value in values.items()}
