"""What is minimised: per-example losses with named parts, and the phases that order them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kdcore.features import FeatureKey, Features


@dataclass(frozen=True)
class Dims:
    """The numbers of one model that objectives may depend on."""

    layers: int
    width: int
    heads: int
    vocabulary: int


@dataclass(frozen=True, eq=False)
class ReadySelector:
    """A selector of knowledge that another training left.

    name      what messages call it
    made_for  what it fits, as `kdcore.selector_training.made_for` tells
    weights   by name, on the CPU
    """

    name: str
    made_for: Mapping[str, Any]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a method may know when it builds its phases: sizes and labels, never models or texts.

    `classes` is the number of outputs; 1 with `regression`, 0 for a corpus.
    `labels` [examples] are those of the training rows by example id, int64 classes or float32 scores, on the CPU;
    -1 or NaN where a row has none, as in the whole of a corpus.
    `batch_size` is the number of examples of one optimiser step; an epoch's last step may have fewer.
    `selector` is the `ready_selector` that a method's `Config` asks for; None where it asks for none, and where nothing
    is to be trained: sizes are enough then.
    """

    teacher: Dims
    student: Dims
    classes: int
    regression: bool
    labels: Tensor
    batch_size: int
    seed: int
    selector: ReadySelector | None = None

    @property
    def examples(self) -> int:
        """The number of training rows; example ids are 0..examples-1."""
        return len(self.labels)


@dataclass(frozen=True)
class Progress:
    """Where training stands. `epoch` and `step` count from 0; `step` counts optimiser steps, so it is
    constant over the micro-batches of one step and the same on every rank and after a resume."""

    epoch: int
    step: int
    total_steps: int


@dataclass(frozen=True)
class Step:
    """Counts for each example s of the whole optimiser step, over micro-batches and ranks, on the CPU.

    A sum over an example's tokens divided by the mean of `lengths` gives values whose mean over the step is the mean
    over all tokens of the step, however the step is cut.
    """

    lengths: Int[Tensor, " s"]
    """Real tokens."""
    masked: Int[Tensor, " s"]
    """Tokens masked for language modelling; 0 where none are."""


@dataclass(frozen=True)
class Masked:
    """Which tokens of a batch were masked for language modelling, in order, and what they were."""

    positions: Int[Tensor, "b p"]
    """0 fills up rows with fewer."""
    targets: Int[Tensor, "b p"]
    """-100 fills up rows with fewer."""


@dataclass(frozen=True)
class Batch:
    """What an objective may know of a batch beside the features."""

    ids: Int[Tensor, " b"]
    labels: Tensor
    """[b], int64 classes or float32 scores; -1 or NaN where an example has none."""
    step: Step | None = None
    """None only where nobody asked for features of tokens."""
    masked: Masked | None = None
    """None unless the objective `masks_tokens`."""


TeacherOf = Callable[[Int[Tensor, " b"], frozenset[FeatureKey]], Features]
"""The teacher's features of the examples with these ids, on the student's device."""


@dataclass(frozen=True)
class Standing:
    """How good the student is on development rows, in eval mode."""

    loss: float
    """Mean label loss."""
    score: float
    """What selects checkpoints: the mean of the dataset's metrics; higher is better."""
    metrics: Mapping[str, float]
    """The metrics by name."""


class Examine(Protocol):
    """Runs the student over development rows: those that the objective holds back, or the selection split where it
    holds back none. Costs a pass, and is to be called only when the value is used."""

    def __call__(self) -> Standing: ...


@dataclass(frozen=True)
class Needs:
    """The features that a step reads from each model."""

    student: frozenset[FeatureKey]
    teacher: frozenset[FeatureKey] = frozenset()


@dataclass(frozen=True)
class Loss:
    """One value per example, as named unweighted parts and their weights.

    `diagnostics` are scalars for the log (collapse monitor, drawn layers); they carry no gradient.
    """

    parts: Mapping[str, Float[Tensor, " b"]]
    weights: Mapping[str, float | Float[Tensor, " b"]]
    diagnostics: Mapping[str, float | Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parts.keys() != self.weights.keys():
            raise ValueError(f"loss parts {sorted(self.parts)} and weights {sorted(self.weights)} differ")

    @property
    def total(self) -> Float[Tensor, " b"]:
        """The weighted sum of the parts, per example."""
        return torch.stack([self.weights[name] * part for name, part in self.parts.items()]).sum(dim=0)


def summed_over_layers(
    layers: Mapping[str, Mapping[int, Float[Tensor, " b"]]]
) -> tuple[dict[str, Float[Tensor, " b"]], dict[str, Tensor]]:
    """Parts that are sums over layers, and as diagnostics the mean of each summand, such as `hidden/3`.

    `layers` holds the summands by part and layer.
    """
    parts = {name: torch.stack(list(values.values())).sum(dim=0) for name, values in layers.items()}
    summands = {f"{name}/{layer}": value.detach().mean() for name, values in layers.items()
                for layer, value in values.items()}
    return parts, summands


@dataclass(frozen=True)
class Alarm:
    """A diagnostic that a person must hear of when it leaves its range; the trainer says `message` once a run."""

    diagnostic: str
    message: str
    low: float = -math.inf
    high: float = math.inf

    def rings(self, value: float) -> bool:
        """True outside of `low`..`high`."""
        return not self.low <= value <= self.high


class Objective(nn.Module, ABC):
    """Maps the features of student and teacher to a `Loss`.

    Learned state (projections, memory banks, actor and critic) is parameters and buffers of the
    objective: optimised with the student, saved in checkpoints, never exported. An objective with
    optimisers of its own leaves their parameters out of `main_parameters` and keeps their state in
    `get_extra_state` as a byte tensor.
    """

    couples_examples: bool = False
    """True when an example's value depends on who shares its batch: such a batch must not be cut into pieces."""

    masks_tokens: bool = False
    """True: both models read texts with tokens masked for language modelling, which `Batch.masked` names."""

    held_back: int = 0
    """So many training rows, but no more than a quarter of those with a label, are in no step of this objective's
    phases: they are its development rows, scattered but always the same ones."""

    alarms: tuple[Alarm, ...] = ()
    """Which diagnostics warn, and when."""

    needs: Needs
    """Everything that `forward` may read in any step; set by the constructor."""

    def needs_at(self, progress: Progress) -> Needs:
        """The features read at this step; a subset of `needs`."""
        return self.needs

    @abstractmethod
    def forward(self, student: Features, teacher: Features, batch: Batch, progress: Progress) -> Loss:
        """Return one loss value per example of the batch."""

    def main_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the student's optimiser updates."""
        return self.parameters()

    @property
    def done(self) -> bool:
        """True: the phases of this objective that are still to come are left out. Follows from its state."""
        return False

    def before_steps(self, examine: Examine) -> None:
        """Called once before the first step of each phase, not after a resume."""

    def before_epoch(self, progress: Progress, teacher: TeacherOf) -> None:
        """Called before the first step of each epoch, not after a resume in the middle of one.

        `teacher` gives features of any training examples; it costs a pass of the teacher over those that are not
        stored, and is to be called only when the values are used.
        """

    def after_step(self, progress: Progress, examine: Examine) -> Mapping[str, float]:
        """Called once after each optimiser step: update memory banks, learn from rewards.

        Not after a step whose loss or gradient was not finite: it counts for nothing. Returns what the log is to know
        beside the diagnostics of the step's losses, by names that these do not have.
        """
        return {}

    def after_steps(self, examine: Examine) -> Mapping[str, float]:
        """Called once after the last step of each phase; returns what the log is to know of the phase as a whole."""
        return {}


@dataclass(frozen=True)
class Phase:
    """One step of a multi-step method; phases run one after another on the same student.

    `epochs`, `learning_rate`, `schedule` and `keep` replace those of the training settings where given;
    `keep="last"` also switches early stopping off, for phases whose loss says nothing of the metric. `share`, in place
    of `epochs`, is a part of the training's length in epochs or steps, for phases that divide it among them.
    Optimiser and schedule start anew in each phase. An objective may serve in several phases and keeps
    its state between them.
    """

    name: str
    objective: Objective
    epochs: float | None = None
    learning_rate: float | None = None
    schedule: Literal["linear", "constant"] | None = None
    keep: Literal["best", "last"] | None = None
    share: float | None = None
    layer_rates: tuple[float, ...] | None = None
    """Factors of the student's learning rate: of its embeddings, then of layers 1..m; 0 freezes. What is neither, heads
    and the objective itself, keeps the full rate. None is 1 for all."""
    fresh_student: bool = False
    """True: the student returns to its initial weights before the phase."""
