"""Means over seeds, and whether two methods differ beyond noise.

A difference between two methods has two sources of noise: which examples were drawn into the evaluation split,
and which seed initialised and shuffled each training. The first is resampled (bootstrap, the same resamples for
both methods and all seeds). The second cannot be: a study has 3 to 5 seeds, and resampling three numbers gives
intervals that are too short (measured on synthetic studies with 3 seeds: a nominal 95 % interval covers 85 to
89 % where seeds dominate). So the seeds' part is the Student-t error of the mean of the paired differences, added
to each resample: 95 to 99 % there. With fewer than three seeds nothing is tested.

Interval and p come from one distribution: the mean over the resamples of a t distribution around each, in closed
form, so that p < 0.05 exactly where the 95 % interval leaves 0 out. A table makes many comparisons, of which one in
twenty would stand out by chance; `corrected` holds the chance of any false one in a family at 5 % (Holm 1979).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000
LEVEL = 0.95
ALPHA = 0.05
FEWEST_SEEDS = 3

_NO_ERROR = 1e-12
"""Seeds that all differ by the same leave the examples' noise alone."""
_TIE = 1e-9
"""Resamples so near to 0 have no difference; with the examples' noise alone many may."""

Verdict = Literal["better", "worse", "not distinguishable", "not tested"]


@dataclass(frozen=True)
class Summary:
    """`sd` is the sample deviation (ddof 1), None for a single value."""

    mean: float
    sd: float | None
    n: int


def summarise(values: Sequence[float]) -> Summary:
    """Mean, deviation and number of values; raises ValueError for none."""
    if not values:
        raise ValueError("nothing to summarise")
    return Summary(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The Student-t interval of the mean of independent values; raises ValueError for fewer than two."""
    from scipy.stats import t

    found = summarise(values)
    if found.sd is None:
        raise ValueError("one value has no interval")
    reach = float(t.ppf((1 + LEVEL) / 2, found.n - 1)) * found.sd / found.n**0.5
    return found.mean - reach, found.mean + reach


@dataclass(frozen=True)
class Difference:
    """A method minus a baseline, on one split.

    `low`, `high`: the 95 % interval, and `p`, two-sided; None where not tested. `p_corrected`: within the family of
    comparisons that `verdict` minds; equal to `p` where there is no other. `in_sd`: the mean in units of the pooled
    deviation of the two methods over seeds, None where that is undefined or 0.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    in_sd: float | None
    seeds: int
    verdict: Verdict


def difference(ours: Float[np.ndarray, " s"], baseline: Float[np.ndarray, " s"],
               ours_resampled: Float[np.ndarray, "r s"] | None,
               baseline_resampled: Float[np.ndarray, "r s"] | None) -> Difference:
    """Compare two methods over the same s seeds.

    Args:
        ours, baseline: the metric per seed on the whole split; entry i of both has the same seed.
        ours_resampled, baseline_resampled: the metric on r resamples of the examples, the same ones for both;
            not read with fewer than three seeds.
    """
    paired = ours - baseline
    seeds, mean = len(paired), float(paired.mean())
    in_sd = None
    if seeds > 1:
        pooled = float(np.sqrt((ours.var(ddof=1) + baseline.var(ddof=1)) / 2))
        in_sd = mean / pooled if pooled > 1e-12 else None
    if seeds < FEWEST_SEEDS or ours_resampled is None or baseline_resampled is None:
        return Difference(mean, None, None, None, None, in_sd, seeds, "not tested")
    error = float(paired.std(ddof=1)) / seeds**0.5
    noise = _Noise((ours_resampled - baseline_resampled).mean(axis=1), error, seeds - 1)
    low, high, p = noise.quantile((1 - LEVEL) / 2), noise.quantile((1 + LEVEL) / 2), noise.p
    return Difference(mean, low, high, p, p, in_sd, seeds, _verdict(low, p))


@dataclass(frozen=True)
class _Noise:
    """What the difference could have been: `centres`, by the examples drawn, each blurred by the seeds' t error."""

    centres: Float[np.ndarray, " r"]
    error: float
    freedom: int

    def below(self, value: float) -> float:
        """The share of the distribution below a value."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, (value - self.centres) / max(self.error, _NO_ERROR)).mean())

    def quantile(self, share: float) -> float:
        """The value below which a share of the distribution lies."""
        from scipy.optimize import brentq
        from scipy.special import stdtrit

        reach = abs(float(stdtrit(self.freedom, share))) * self.error + 1e-6  # a single blur's reach bounds the mixture
        return round(float(brentq(lambda value: self.below(value) - share, self.centres.min() - reach,
                                  self.centres.max() + reach, xtol=1e-12)), 9) + 0.0

    @property
    def p(self) -> float:
        """Two-sided; of examples' noise alone never below what so many resamples can tell, with ties on both sides."""
        alone = self.error < _NO_ERROR
        tie, least = (_TIE, 1 / len(self.centres)) if alone else (0.0, 0.0)
        return round(min(1.0, max(2 * min(self.below(tie), 1 - self.below(-tie)), least)), 9)


def corrected(family: Sequence[Difference]) -> list[Difference]:
    """The same differences with p and verdict corrected for how many of them were tested (Holm 1979).

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6: the smallest
    of m p-values is multiplied by m, the next by m - 1 and so on, none below the one before. It assumes nothing about
    how comparisons depend on each other, as those that share a baseline and rows do.
    """
    tested = sorted((found.p, place) for place, found in enumerate(family) if found.p is not None)
    adjusted, last = list(family), 0.0
    for passed, (p, place) in enumerate(tested):
        last = min(1.0, max(last, p * (len(tested) - passed)))
        adjusted[place] = replace(family[place], p_corrected=last, verdict=_verdict(family[place].low, last))
    return adjusted


def _verdict(low: float | None, p: float) -> Verdict:
    if p >= ALPHA or low is None:
        return "not distinguishable"
    return "better" if low >= 0 else "worse"
