"""Objectives that misbehave or tell what was done to them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kdcore.features import LOGITS, Features, layer_keys
from kdcore.losses import label_loss
from kdcore.objective import Alarm, Batch, Examine, Loss, Needs, Objective, Phase, Progress, Standing, TeacherOf


class Stop(Exception):
    """Stands for a crash."""


class Watched(Objective):
    """The label loss plus a learned bridge from the student's first layer, with a log of all calls.

    `interfere` gets the step and the bridge's loss per example and returns what to use in its place.
    """

    alarms = (Alarm("level", "the level is high", high=0.5),)

    def __init__(self, interfere: Callable[[int, Tensor], Tensor] = lambda now, part: part,
                 level: float = 0.0) -> None:
        super().__init__()
        self.bridge = nn.Linear(16, 4)
        self.seen: list[Progress] = []
        self.stepped: list[Progress] = []
        self.begun = 0
        self.epochs: list[Progress] = []
        self.standings: list[Standing] = []
        self.interfere = interfere
        self.level = level
        self.needs = Needs(student=frozenset({LOGITS, *layer_keys("mean", (1,))}))

    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        self.seen.append(progress)
        bridge = self.bridge(student[layer_keys("mean", (1,))[0]]).square().sum(dim=1)
        parts = {"label": label_loss(student.logits, batch.labels, False),
                 "bridge": self.interfere(progress.step, bridge)}
        return Loss(parts, {"label": 1.0, "bridge": 0.25}, {"level": torch.tensor(self.level), "constant": 3.0})

    def before_steps(self, examine: Examine) -> None:
        self.begun += 1
        self.standings.append(examine())

    def before_epoch(self, progress: Progress, teacher: TeacherOf) -> None:
        self.epochs.append(progress)

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        self.stepped.append(progress)
        return {"told": 2.0} if progress.step % 2 else {}


def watched(**arguments: Any) -> tuple[Phase, ...]:
    """One phase with a `Watched` objective, always with the same bridge."""
    torch.manual_seed(7)
    return (Phase("toy", Watched(**arguments)),)


def stop_at(step: int) -> Callable[[int, Tensor], Tensor]:
    """Crash in the forward of a step."""
    def interfere(now: int, part: Tensor) -> Tensor:
        if now == step:
            raise Stop
        return part
    return interfere


def crash_at(objective: Objective, step: int) -> None:
    """Make any objective crash in the forward of a step; its state stays what it is."""
    def check(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        progress: Progress = arguments[3]
        if progress.step == step:
            raise Stop
    objective.register_forward_pre_hook(check)


def poison(*steps: int) -> Callable[[int, Tensor], Tensor]:
    """NaN for one example in these steps."""
    def interfere(now: int, part: Tensor) -> Tensor:
        return torch.cat([part[:1] * float("nan"), part[1:]]) if now in steps else part
    return interfere


class _BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * float("inf")


def bad_gradient(now: int, part: Tensor) -> Tensor:
    """A finite loss whose gradient is not."""
    return _BadGradient.apply(part)
