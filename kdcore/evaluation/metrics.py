"""The metrics of every dataset, over all predictions at once, and the score that selects checkpoints.

Pure functions of two arrays, called through `measure`, which checks the arrays first; scikit-learn and SciPy do
the maths. Those are imported inside the functions, because declarations of datasets read the names without
computing anything. The same metrics as `evaluate.Metric` classes are in `evaluate_modules`.

An undefined value (Matthews or F1 with a zero denominator, a correlation with a constant) is 0.0 and marked
degenerate, so no file ever holds NaN. Sources: GLUE (Wang et al. 2019) for the choice per dataset,
Matthews (1975) for phi.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from kdcore.data.prepared import Prepared, PreparedInfo
from kdcore.errors import UserError, did_you_mean
from kdcore.evaluation.ood import collapse, collapsed_probabilities, collapses

PROTOCOL = "kdflow-metrics/1"
"""Written into every metrics file; raised whenever a number would come out differently for the same predictions."""

PROBABILITY_SUM = "accuracy_prob_sum"
"""Out of domain, where several labels collapse into one: the decision by summed probabilities."""


@dataclass(frozen=True)
class Measured:
    """One metric's value; `degenerate` when its formula is undefined here and the value 0.0 by convention."""

    value: float
    degenerate: bool = False


def accuracy(predictions: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> Measured:
    """Share of equal classes."""
    return Measured(float(np.mean(predictions == labels)))


def f1(predictions: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> Measured:
    """F1 of class 1 (MRPC, QQP); degenerate when class 1 is neither there nor predicted.

    Raises:
        UserError: a class beyond 0 and 1; `macro_f1` is for those.
    """
    from sklearn.metrics import f1_score

    highest = int(max(predictions.max(), labels.max()))
    if highest > 1:
        raise UserError(f"metric f1 is of class 1 against class 0, but class {highest} occurs; use macro_f1")
    undefined = not (predictions == 1).any() and not (labels == 1).any()
    return Measured(float(f1_score(labels, predictions, pos_label=1, zero_division=0.0)), undefined)


def macro_f1(predictions: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> Measured:
    """Unweighted mean of the F1 of each class that is there or predicted."""
    from sklearn.metrics import f1_score

    return Measured(float(f1_score(labels, predictions, average="macro", zero_division=0.0)))


def matthews(predictions: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> Measured:
    """Matthews correlation (CoLA); 0.0 and degenerate when predictions or labels are constant."""
    from sklearn.metrics import matthews_corrcoef

    undefined = np.ptp(predictions) == 0 or np.ptp(labels) == 0
    return Measured(0.0, True) if undefined else Measured(float(matthews_corrcoef(labels, predictions)))


def pearson(predictions: Float[np.ndarray, " n"], labels: Float[np.ndarray, " n"]) -> Measured:
    """Pearson correlation (STS-B); 0.0 and degenerate when a side is constant or has one row."""
    from scipy.stats import pearsonr

    return _correlation(lambda: pearsonr(predictions, labels).statistic, predictions, labels)


def spearman(predictions: Float[np.ndarray, " n"], labels: Float[np.ndarray, " n"]) -> Measured:
    """Spearman rank correlation with average ranks for ties (STS-B); degenerate as `pearson`."""
    from scipy.stats import spearmanr

    return _correlation(lambda: spearmanr(predictions, labels).statistic, predictions, labels)


Metric = Callable[[np.ndarray, np.ndarray], Measured]
CLASS_METRICS: Mapping[str, Metric] = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews}
SCORE_METRICS: Mapping[str, Metric] = {"pearson": pearson, "spearman": spearman}


def measure(name: str, predictions: np.ndarray, labels: np.ndarray) -> Measured:
    """Compute one metric by name.

    Raises:
        UserError: what `check` refuses, or what the metric cannot be computed for.
    """
    check(name, predictions, labels)
    return {**CLASS_METRICS, **SCORE_METRICS}[name](predictions, labels)


def decide(logits: Float[Tensor, "n c"], regression: bool) -> np.ndarray:
    """The predicted class per row, int64 [n], or the predicted score, float64 [n].

    Raises:
        UserError: a value is NaN or infinite, which means that training diverged.
    """
    values = logits.double().numpy()
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        raise UserError(f"{int(bad.sum())} of {len(bad)} rows of logits are not finite (first: row {int(bad.argmax())})"
                        "; the model diverged: lower its learning rate or train in fp32")
    return values[:, 0] if regression else values.argmax(axis=1)


def score(prepared: Prepared, split: str, logits: Float[Tensor, "n c"],
          measure: Callable[[str, np.ndarray, np.ndarray], Measured] = measure,
          part: Int[Tensor, " n"] | None = None) -> dict[str, Any]:
    """Score the logits of a whole split, rows in the split's order, columns in the order of `info.labels`.

    Rows of the training split without labels do not count. `part` names the rows, all with labels, where the logits
    are not those of the whole split.
    Out-of-domain splits of a classification are scored by accuracy after mapping classes by name; where
    classes collapse, `accuracy_prob_sum` stands beside it.

    Returns:
        `{metric: value, ..., "degenerate": bool, "n": rows}`; degenerate when a metric is undefined or the
        model gives every row the same answer.

    Raises:
        UserError: labels are hidden, rows are missing, or values are not finite.
    """
    info, about = prepared.info, prepared.split(split)
    if about.hidden:
        raise UserError(f"{info.name}/{split} hides its labels, so it cannot be scored here; its predictions are "
                        "written for submission")
    labels = prepared.labels(split).numpy()
    if part is not None:
        labels = labels[part.numpy()]
    if len(labels) != len(logits):
        raise UserError(f"{info.name}/{split} has {len(labels)} rows but {len(logits)} predictions; predict the whole "
                        "split before scoring")
    if part is None:
        labels, logits = labels[:about.labelled], logits[:about.labelled]
    predictions = decide(logits, info.regression)
    constant = len(predictions) > 1 and np.ptp(predictions) == 0
    if info.labels is None:
        results = {name: measure(name, predictions, labels.astype(np.float64)) for name in info.metrics}
    elif about.role == "ood":
        results = {"accuracy": measure("accuracy", collapse(info.labels, about)[predictions], labels)}
        if collapses(info.labels, about):
            summed = collapsed_probabilities(logits, info.labels, about).argmax(dim=1).numpy()
            results[PROBABILITY_SUM] = measure("accuracy", summed, labels)
    else:
        results = {name: measure(name, predictions, labels) for name in info.metrics}
    return {**{name: result.value for name, result in results.items()},
            "degenerate": bool(constant or any(result.degenerate for result in results.values())), "n": len(labels)}


def selection_score(metrics: Mapping[str, Any], info: PreparedInfo) -> float:
    """What selects a checkpoint: the mean of the dataset's metrics; higher is better."""
    return float(np.mean([metrics[name] for name in info.metrics]))


def check(name: str, predictions: np.ndarray, labels: np.ndarray) -> None:
    """Refuse values that a metric cannot compare.

    Raises:
        UserError: unknown name, lengths differ or are zero, class ids that are no integers or negative, scores that
            are not finite.
    """
    known = {**CLASS_METRICS, **SCORE_METRICS}
    if name not in known:
        raise UserError(f"metric {name!r} is unknown; {did_you_mean(name, known)}")
    if predictions.ndim != 1 or predictions.shape != labels.shape or not len(labels):
        raise UserError(f"metric {name} compares two lists of equal length, got shapes {predictions.shape} and "
                        f"{labels.shape}")
    for what, values in (("predictions", predictions), ("labels", labels)):
        if name in SCORE_METRICS:
            if not np.isfinite(values).all():
                row = int((~np.isfinite(values)).argmax())
                raise UserError(f"metric {name}: {what} hold {values[row]} at row {row}; every score must be finite")
        elif not np.issubdtype(values.dtype, np.integer):
            raise UserError(f"metric {name} compares class ids, but the {what} are {values.dtype}; pass integers "
                            "(the argmax of the logits)")
        elif values.min() < 0:
            raise UserError(f"metric {name}: {what} hold {int(values.min())} at row {int(values.argmin())}; "
                            "-1 marks a hidden label, which cannot be scored")


def _correlation(statistic: Callable[[], float], predictions: np.ndarray, labels: np.ndarray) -> Measured:
    if len(labels) < 2 or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return Measured(0.0, True)
    value = float(statistic())
    # A spread below the rounding error of the mean leaves no correlation to speak of.
    return Measured(value) if np.isfinite(value) else Measured(0.0, True)
