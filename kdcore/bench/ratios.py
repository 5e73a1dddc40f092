"""How long an epoch of a method takes relative to one of fine-tuning, and how far the measurement can be trusted.

All trainings run in turn, round by round, on the same batches. A step's time is its median over the rounds, so a
disturbance counts for nothing until it hits a step in half of the rounds; an epoch is the sum over the steps. The
interval comes from drawing the rounds anew, the same rounds for both sides, since what slows the machine down for a
while slows both.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

DRAWS = 2000
CONFIDENCE = 0.9

Seconds = Float[np.ndarray, "rounds steps"]


@dataclass(frozen=True)
class Ratio:
    """A measured ratio with an interval that covers it in nine of ten repetitions."""

    value: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        """How far from 1 the interval reaches: of fine-tuning against itself, the noise of the measurement."""
        return max(1 - self.low, self.high - 1)

    def verdict(self, at_most: float, noise: float) -> Literal["met", "missed", "within noise"]:
        """Whether a target is met; `within noise` when it lies inside the interval, or nearer than `noise`."""
        if max(self.high, self.value + noise) <= at_most:
            return "met"
        return "missed" if min(self.low, self.value - noise) > at_most else "within noise"


def ratio(method: Seconds, baseline: Seconds, less: Seconds | None = None) -> Ratio:
    """(method - less) / baseline, in time per epoch.

    `baseline` may have a multiple of the method's rounds: its k-th part is what ran in the method's rounds, again.
    """
    rounds = len(method)
    own = np.arange(rounds)[None]
    drawn = np.random.default_rng(0).integers(rounds, size=(DRAWS, rounds))
    values = [(_epochs(method, chosen) - (0 if less is None else _epochs(less, chosen)))
              / _epochs(baseline, np.concatenate([chosen + k for k in range(0, len(baseline), rounds)], axis=1))
              for chosen in (own, drawn)]
    low, high = np.quantile(values[1], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Ratio(float(values[0][0]), float(low), float(high))


def epoch(seconds: Seconds) -> float:
    """Seconds of all measured steps together, each at its median."""
    return float(_epochs(seconds, np.arange(len(seconds))[None])[0])


def _epochs(seconds: Seconds, rounds: np.ndarray) -> Float[np.ndarray, " draws"]:
    """The sum of the steps' medians over the rounds that each draw holds."""
    return np.median(seconds[rounds], axis=1).sum(axis=1)
