"""Means over seeds, and whether two methods differ beyond noise.

A difference between two methods has two sources of noise: which examples were drawn into the evaluation split,
and which seed initialised and shuffled each training. The first is resampled (bootstrap, the same resamples for
both methods and all seeds). The second cannot be: a study has 3 to 5 seeds, and resampling three numbers gives
intervals that are too short (measured on synthetic studies with 3 seeds: a nominal 95 % interval covers 85 to
89 % where seeds dominate). So the seeds' part is the Student-t error of the mean of the paired differences, added
to each resample: 95 to 99 % there. With fewer than three seeds nothing is tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

RESAMPLES = 2000
LEVEL = 0.95
FEWEST_SEEDS = 3

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

    `low`, `high`: the 95 % interval, None where not tested. `in_sd`: the mean in units of the pooled deviation of
    the two methods over seeds, None where that is undefined or 0.
    """

    mean: float
    low: float | None
    high: float | None
    in_sd: float | None
    seeds: int
    verdict: Verdict


def difference(ours: Float[np.ndarray, " s"], baseline: Float[np.ndarray, " s"],
               ours_resampled: Float[np.ndarray, "r s"] | None, baseline_resampled: Float[np.ndarray, "r s"] | None,
               seed: int = 0) -> Difference:
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
        return Difference(mean, None, None, in_sd, seeds, "not tested")
    examples = (ours_resampled - baseline_resampled).mean(axis=1)
    error = paired.std(ddof=1) / np.sqrt(seeds)
    draws = examples + error * np.random.default_rng(seed).standard_t(seeds - 1, len(examples))
    low, high = (float(bound) for bound in np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    verdict: Verdict = "better" if low > 0 else "worse" if high < 0 else "not distinguishable"
    return Difference(mean, low, high, in_sd, seeds, verdict)
