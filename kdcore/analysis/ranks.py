"""Average ranks of methods over datasets, and which of them lie apart.

Demšar, Journal of Machine Learning Research 7 (2006), "Statistical Comparisons of Classifiers over Multiple Data Sets",
section 3.2: ranks within each dataset, Friedman's test of all, Nemenyi's critical difference between any two.
Ranks are of means over seeds, whose spread they do not see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kdcore.analysis.statistics import ALPHA, LEVEL

FEWEST_METHODS = 3
"""Friedman's test needs three; two methods are compared by their difference."""


@dataclass(frozen=True)
class Ranking:
    """`ranks`: the mean rank of each method, best (lowest) first; ties share theirs. `p`: Friedman's, that all methods
    are alike. Two methods lie apart when their ranks differ by `critical` or more."""

    ranks: Mapping[str, float]
    datasets: int
    chi_square: float
    p: float
    critical: float

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The largest sets of methods that do not lie apart, in order of rank; a method that stands alone is none. All
        are one where Friedman's test finds no difference among them: then no two ranks are to be compared."""
        names = list(self.ranks)
        if self.p >= ALPHA:
            return (tuple(names),)
        runs = [tuple(name for name in names[first:] if self.ranks[name] - self.ranks[best] < self.critical)
                for first, best in enumerate(names)]
        return tuple(run for place, run in enumerate(runs)
                     if len(run) > 1 and not any(set(run) <= set(before) for before in runs[:place]))


def rank(scores: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank methods by their scores, higher is better.

    Args:
        scores: by method, one per dataset in the same order; of at least three methods and `fewest_datasets`.
    """
    from scipy.stats import friedmanchisquare, rankdata

    values = np.array([scores[name] for name in scores])
    means = rankdata(-values, axis=0).mean(axis=1)
    datasets = values.shape[1]
    alike = bool((values == values[0]).all())  # the statistic is undefined when nothing differs anywhere
    chi_square, p = (0.0, 1.0) if alike else (float(found) for found in friedmanchisquare(*values))
    ranks = dict(sorted(zip(scores, means.tolist(), strict=True), key=lambda found: found[1]))
    return Ranking(ranks, datasets, chi_square, p, critical_difference(len(values), datasets))


def critical_difference(methods: int, datasets: int) -> float:
    """By how much two mean ranks must differ to lie apart at 5 %, all pairs together (Nemenyi 1963)."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(LEVEL, methods, np.inf)) / 2**0.5
    return float(q * (methods * (methods + 1) / (6 * datasets)) ** 0.5)


def fewest_datasets(methods: int) -> int:
    """The datasets from which on the best and the worst of so many methods could lie apart at all."""
    datasets = 1
    while critical_difference(methods, datasets) > methods - 1:
        datasets += 1
    return datasets
