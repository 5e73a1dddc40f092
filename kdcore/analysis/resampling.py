"""Every metric on many bootstrap resamples of the examples at once.

A resample of n rows is n counts, how often each row was drawn; each metric is a function of counts, so all
resamples and all models are a few matrix products. With all counts 1 the values are those of
`kdcore.evaluation.metrics`, and undefined values are 0.0 as there. r resamples, k models, n examples.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float, Num

Weights = Float[np.ndarray, "r n"]
Values = Float[np.ndarray, "r k"]

_ENTRIES = 4_000_000
"""Counts held at once (32 MB as float64)."""


def draw_counts(examples: int, resamples: int, seed: int) -> Iterator[Weights]:
    """Multinomial counts of `resamples` resamples of all examples, in blocks of rows; equal for equal arguments."""
    generator = np.random.default_rng(seed)
    block = max(1, _ENTRIES // examples)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(0, examples, (rows, examples))
        drawn += np.arange(rows)[:, None] * examples
        yield np.bincount(drawn.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float64)


def resampled(metric: str, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"], resamples: int,
              seed: int) -> Values:
    """The metric of k models on the same resamples of the examples: paired by construction."""
    values = _METRICS[metric]
    return np.concatenate([values(counts, predictions, labels)
                           for counts in draw_counts(len(labels), resamples, seed)])


def accuracy(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"]) -> Values:
    """Weighted share of equal classes."""
    return counts @ (predictions == labels).T.astype(np.float64) / counts.sum(axis=1, keepdims=True)


def f1(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"],
       positive: int = 1) -> Values:
    """2 TP / (2 TP + FP + FN) of one class; 0 where it is neither there nor predicted."""
    chosen, true = predictions == positive, labels == positive
    both = 2 * counts @ (chosen & true).T.astype(np.float64)
    return _ratio(both, counts @ chosen.T.astype(np.float64) + (counts @ true.astype(np.float64))[:, None])


def macro_f1(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"]) -> Values:
    """Mean F1 over the classes that are there or predicted in each resample."""
    total, present = np.zeros((len(counts), len(predictions))), np.zeros((len(counts), len(predictions)))
    for positive in range(int(max(predictions.max(), labels.max())) + 1):
        seen = (predictions == positive) | (labels == positive)
        there = counts @ seen.T.astype(np.float64) > 0
        total += np.where(there, f1(counts, predictions, labels, positive), 0.0)
        present += there
    return _ratio(total, present)


def matthews(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"]) -> Values:
    """Gorodkin's (2004) form for any number of classes; phi for two."""
    rows = counts.sum(axis=1, keepdims=True)
    agree = counts @ (predictions == labels).T.astype(np.float64)
    cross, chosen_square, true_square = (np.zeros_like(agree) for _ in range(3))
    for positive in range(int(max(predictions.max(), labels.max())) + 1):
        chosen = counts @ (predictions == positive).T.astype(np.float64)
        true = (counts @ (labels == positive).astype(np.float64))[:, None]
        cross += chosen * true
        chosen_square += chosen**2
        true_square += true**2
    return _ratio(agree * rows - cross, np.sqrt((rows**2 - chosen_square) * (rows**2 - true_square)))


def pearson(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"]) -> Values:
    """Weighted Pearson correlation; 0 where a side is constant in a resample."""
    return np.stack([_correlation(counts, row.astype(np.float64), labels.astype(np.float64)) for row in predictions],
                    axis=1)


def spearman(counts: Weights, predictions: Num[np.ndarray, "k n"], labels: Num[np.ndarray, " n"]) -> Values:
    """Pearson correlation of the average ranks that the rows have within each resample."""
    ranks = _midranks(counts, labels)
    return np.stack([_correlation(counts, _midranks(counts, row), ranks) for row in predictions], axis=1)


def _midranks(counts: Weights, values: Num[np.ndarray, " n"]) -> Weights:
    """The rank of each row among the drawn ones, ties (also of a row drawn twice) sharing their mean."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks = np.cumsum(sizes, axis=1) - sizes / 2 + 0.5
    return ranks[:, group]


def _correlation(counts: Weights, x: Float[np.ndarray, "..."], y: Float[np.ndarray, "..."]) -> Float[np.ndarray, " r"]:
    """Correlation under the counts; `x` and `y` are [n], or [r, n] where they differ between resamples."""
    total = counts.sum(axis=1, keepdims=True)
    x = x - (counts * x).sum(axis=1, keepdims=True) / total
    y = y - (counts * y).sum(axis=1, keepdims=True) / total
    spread = np.sqrt((counts * x**2).sum(axis=1) * (counts * y**2).sum(axis=1))
    # Rounding leaves a trace of spread in a constant; it is no spread.
    tiny = 1e-12 * total[:, 0] * np.abs(x).max(axis=-1) * np.abs(y).max(axis=-1)
    return _ratio((counts * x * y).sum(axis=1), np.where(spread > tiny, spread, 0.0))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


_METRICS: dict[str, Callable[..., Values]] = {
    "accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews, "pearson": pearson,
    "spearman": spearman}
