"""The metrics as `evaluate.Metric` classes: offline, in memory, strict about their inputs.

`evaluate` costs 0.6 s to import beside transformers and several seconds alone, so nothing imports this module at
its top: the evaluate stage loads it when it scores, training never does. The maths is that of `metrics`; what
these classes add is evaluate's interface, for `evaluate.combine`, `evaluate.evaluator` and notebooks.

Why not evaluate's own metrics: `evaluate.load` wants the hub, and their int64 columns turn 0.7 into 0 without
a word and let NaN pass.
"""

import tempfile
from typing import Any

import datasets
import evaluate
import numpy as np

from kdcore.evaluation import metrics
from kdcore.evaluation.metrics import PROTOCOL, Measured


class _Metric(evaluate.Metric):
    """What the classes below share. `compute` returns `{name: value, "degenerate": bool}`."""

    name_here: str
    column: str

    def __init__(self) -> None:
        # The base class makes a folder even when it keeps everything in memory, by default under the user's home.
        with tempfile.TemporaryDirectory() as folder:
            super().__init__(keep_in_memory=True, cache_dir=folder)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=f"{self.name_here}, protocol {PROTOCOL}", citation="", inputs_description="",
            features=datasets.Features({"predictions": datasets.Value(self.column),
                                        "references": datasets.Value(self.column)}))

    def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
        """Take in rows; values are checked here, since the table behind would convert them without a word."""
        metrics.check(self.name_here, np.asarray(predictions), np.asarray(references))
        super().add_batch(predictions=predictions, references=references)

    def add(self, *, prediction: Any = None, reference: Any = None) -> None:
        """Take in one row, checked as in `add_batch`."""
        metrics.check(self.name_here, np.asarray([prediction]), np.asarray([reference]))
        super().add(prediction=prediction, reference=reference)

    def _compute(self, predictions: Any, references: Any) -> dict[str, Any]:
        result = metrics.measure(self.name_here, np.asarray(predictions), np.asarray(references))
        return {self.name_here: result.value, "degenerate": result.degenerate}


class Accuracy(_Metric):
    """Share of equal classes."""

    name_here, column = "accuracy", "int64"


class F1(_Metric):
    """F1 of class 1."""

    name_here, column = "f1", "int64"


class MacroF1(_Metric):
    """Unweighted mean of the F1 of every class."""

    name_here, column = "macro_f1", "int64"


class Matthews(_Metric):
    """Matthews correlation."""

    name_here, column = "matthews", "int64"


class Pearson(_Metric):
    """Pearson correlation."""

    name_here, column = "pearson", "float64"


class Spearman(_Metric):
    """Spearman rank correlation, average ranks for ties."""

    name_here, column = "spearman", "float64"


MODULES: dict[str, type[_Metric]] = {kind.name_here: kind for kind in (Accuracy, F1, MacroF1, Matthews, Pearson,
                                                                       Spearman)}


def measure(name: str, predictions: np.ndarray, labels: np.ndarray) -> Measured:
    """`metrics.measure` through the class of that name."""
    result = MODULES[name]().compute(predictions=predictions, references=labels)
    return Measured(result[name], result["degenerate"])
