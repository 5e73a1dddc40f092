"""What happened in a training: sums of the open epoch, the finished epochs, the selection. Plain numbers only.

All of it but the times is a function of the inputs, whether the training was interrupted or not.
"""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from kdcore.objective import Loss

LOSS = "loss"
"""Name of the weighted sum; a part `x` of it is `loss/x`."""


@dataclass(frozen=True)
class StepNumbers:
    """One optimiser step on the host: its sums, the norm of its gradient, and whether any rank raised its flag."""

    sums: "Sums"
    gradient_norm: float
    flag: bool


class StepSums:
    """Sums over the examples of one optimiser step; on the device until `read`, which waits for it once."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._losses: Tensor | None = None
        self._examples = 0
        self._diagnostics: dict[str, tuple[Tensor | float, int]] = {}

    def add(self, loss: Loss, total: Tensor) -> None:
        """Take in a micro-batch; `total` [b] is `loss.total`."""
        examples = len(total)
        self._names = [LOSS, *(f"{LOSS}/{name}" for name in loss.parts)]
        losses = torch.stack([total, *loss.parts.values()]).detach().sum(dim=1)
        self._losses = losses if self._losses is None else self._losses + losses
        self._examples += examples
        for name, value in loss.diagnostics.items():
            sum_before, count = self._diagnostics.get(name, (0.0, 0))
            weighted = value.detach() * examples if isinstance(value, Tensor) else value * examples
            self._diagnostics[name] = (sum_before + weighted if count else weighted, count + examples)

    def read(self, gradient_norm: Tensor, flag: bool, over_ranks: bool) -> StepNumbers:
        """The numbers of the step; losses and flag `over_ranks` are those of all ranks, diagnostics this rank's."""
        assert self._losses is not None
        losses = self._losses.double()
        size, examples, norm = len(losses), self._examples, gradient_norm.to(losses).reshape(1)
        if over_ranks:
            own = torch.tensor([float(examples), float(flag)], dtype=losses.dtype, device=losses.device)
            losses = torch.cat([losses, own])
            torch.distributed.all_reduce(losses)
        tensors = {name: value for name, (value, _) in self._diagnostics.items() if isinstance(value, Tensor)}
        more = [torch.stack(list(tensors.values())).to(losses)] if tensors else []
        values = torch.cat([norm, losses, *more]).tolist()
        if over_ranks:
            examples, flag = int(values[1 + size]), values[2 + size] > 0
        sums = Sums({name: (value, examples) for name, value in zip(self._names, values[1:], strict=False)})
        read = dict(zip(tensors, values[1 + len(losses):], strict=True))
        for name, (value, count) in self._diagnostics.items():
            sums[name] = (read[name] if isinstance(value, Tensor) else value, count)
        return StepNumbers(sums, values[0], flag)


class Sums(dict[str, tuple[float, int]]):
    """Name to (sum, number of examples)."""

    def include(self, more: "Sums") -> None:
        """Add the sums of further examples."""
        for name, (value, examples) in more.items():
            before, count = self.get(name, (0.0, 0))
            self[name] = (before + value, count + examples)

    def means(self) -> dict[str, float]:
        """Name to mean over the examples."""
        return {name: value / examples for name, (value, examples) in self.items()}

    def losses(self) -> dict[str, Any]:
        """`loss`, None of no examples, and its `parts` by name, as means."""
        means = self.means()
        return {"loss": means.get(LOSS), "parts": {name.removeprefix(f"{LOSS}/"): value for name, value in means.items()
                                                   if name.startswith(f"{LOSS}/")}}

    def diagnostics(self) -> dict[str, float]:
        """All that is no loss, as means."""
        return {name: value for name, value in self.means().items() if not name.startswith(LOSS)}

    def not_finite(self) -> list[str]:
        """Names of the losses that are NaN or infinite, parts before their sum."""
        bad = [name for name, (value, _) in self.items() if name.startswith(LOSS) and not math.isfinite(value)]
        return sorted(bad, key=lambda name: name == LOSS)


class Window:
    """Means over the last few steps, for the journal and the bar."""

    def __init__(self, steps: int) -> None:
        """`steps`: how many a window holds."""
        self.steps = steps
        self._sums = Sums()
        self._held = 0
        self._norm = 0.0
        self._rate = 0.0

    def add(self, sums: Sums, gradient_norm: float, learning_rate: float) -> bool:
        """Take in a step; True when the window is full."""
        self._sums.include(sums)
        self._held += 1
        self._norm += gradient_norm
        self._rate = learning_rate
        return self._held >= self.steps

    def tell(self, news: Sums) -> None:
        """Take in what became known after the step that was added last."""
        self._sums.include(news)

    def empty(self) -> dict[str, float]:
        """Losses, diagnostics and the gradient's norm (before clipping) as means; the last learning rate."""
        values = self._sums.means() | {"gradient_norm": self._norm / self._held, "learning_rate": self._rate}
        self._sums, self._held, self._norm = Sums(), 0, 0.0
        return values


@dataclass
class Best:
    """The selected state of the student: after which evaluation, and what it scored there."""

    phase: str
    epoch: float
    step: int
    score: float
    metrics: dict[str, Any]


@dataclass
class Times:
    """Seconds of this machine; no part of any result that must be reproducible."""

    epochs: list[float] = field(default_factory=list)
    """Training alone, per finished epoch: neither evaluation nor checkpoints."""
    open_epoch: float = 0.0
    evaluation: float = 0.0
    checkpoints: float = 0.0
    examples: int = 0
    """Examples trained on in `epochs` and `open_epoch`."""
    tokens: int = 0
    """Their real tokens, as the student reads them."""


@dataclass
class Record:
    """State of a training beside its tensors; goes into every checkpoint."""

    phase: int = 0
    """Number of the phase under way, from 0."""
    history: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    """Losses and diagnostics at equal distances, about fifty a phase: an epoch of a corpus may be all there is."""
    open: Sums = field(default_factory=Sums)
    stretch: Sums = field(default_factory=Sums)
    """Since the last point of the curve."""
    steps_before: int = 0
    """Steps of earlier phases."""
    skipped: int = 0
    skipped_in_a_row: int = 0
    skipped_in_epoch: int = 0
    best: Best | None = None
    stale: int = 0
    """Evaluations since the best one."""
    warnings: list[str] = field(default_factory=list)
    finished: bool = False
    """Whether the phase is over."""
    times: Times = field(default_factory=Times)

    def to_json(self) -> str:
        """Exact: floats are written so that they read back the same."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Inverse of `to_json`."""
        content = json.loads(text)
        for sums in ("open", "stretch"):
            content[sums] = Sums({name: (value, examples) for name, (value, examples) in content[sums].items()})
        content["best"] = content["best"] and Best(**content["best"])
        return cls(**content | {"times": Times(**content["times"])})

    def begin_phase(self, phase: int) -> None:
        """Forget what belongs to the phase before; the history stays."""
        self.phase = phase
        self.steps_before += self.history[-1]["step"]
        self.best, self.stale, self.skipped_in_a_row, self.finished = None, 0, 0, False
        self.open, self.stretch, self.skipped_in_epoch = Sums(), Sums(), 0

    def tell(self, news: "Sums") -> None:
        """Take in what became known after a step."""
        self.open.include(news)
        self.stretch.include(news)

    def close_stretch(self, phase: str, step: int) -> None:
        """Turn the sums since the last point into a point of the curve; `step` counts within the phase."""
        self.curve.append({"phase": phase, "step": self.steps_before + step, **self.stretch.losses(),
                           "diagnostics": self.stretch.diagnostics()})
        self.stretch = Sums()

    def close_epoch(self, phase: str, epoch: float, step: int) -> dict[str, Any]:
        """Turn the open sums into an entry of the history and return it."""
        entry: dict[str, Any] = {
            "phase": phase, "epoch": epoch, "step": step, **self.open.losses(),
            "diagnostics": self.open.diagnostics(), "skipped_steps": self.skipped_in_epoch,
        }
        self.history.append(entry)
        self.times.epochs.append(self.times.open_epoch)
        self.times.open_epoch = 0.0
        self.open, self.skipped_in_epoch = Sums(), 0
        return entry

    @staticmethod
    def flat(entry: dict[str, Any]) -> dict[str, float]:
        """An entry of the history as named numbers for a journal or tracker."""
        named = {"epoch": entry["epoch"], "epoch/loss": entry["loss"], "skipped_steps": entry["skipped_steps"]}
        named |= {f"epoch/loss/{name}": value for name, value in entry["parts"].items()}
        named |= {f"epoch/{name}": value for name, value in entry["diagnostics"].items()}
        named |= {f"dev/{name}": value for name, value in entry.get("development", {}).items()}
        return {name: float(value) for name, value in named.items() if value is not None}

    def consider(self, phase: str, epoch: float, step: int, score: float, metrics: dict[str, Any]) -> bool:
        """Note an evaluation; True when it is the best so far. The first one always is."""
        if self.best is None or score > self.best.score:
            self.best, self.stale = Best(phase, epoch, step, score, metrics), 0
            return True
        self.stale += 1
        return False
