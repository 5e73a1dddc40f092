"""Metrics against hand values, golden vectors, and what must be refused."""

import json

import numpy as np
import pytest
import torch

from kdcore.errors import UserError
from kdcore.evaluation import evaluate_modules
from kdcore.evaluation.metrics import CLASS_METRICS, SCORE_METRICS, Measured, decide, measure, score, selection_score
from tests.evaluation.synthetic import SENTIMENT, split, write_prepared

# TP 2, FP 1, FN 1, TN 2
PREDICTED, TRUE = np.array([1, 1, 1, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0])
WAYS = pytest.mark.parametrize("compute", [measure, evaluate_modules.measure], ids=["function", "evaluate.Metric"])


@WAYS
@pytest.mark.parametrize(("name", "value"), [
    ("accuracy", 4 / 6), ("f1", 2 * 2 / (2 * 2 + 1 + 1)), ("macro_f1", 2 / 3),
    ("matthews", (2 * 2 - 1 * 1) / (3 * 3 * 3 * 3) ** 0.5)])
def test_class_metrics_by_hand(compute, name, value):
    found = compute(name, PREDICTED, TRUE)
    assert found.value == pytest.approx(value)
    assert not found.degenerate


@WAYS
def test_correlations_by_hand(compute):
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 5.0])
    assert compute("pearson", x, y).value == pytest.approx(5.5 / (5 * 8.75) ** 0.5)
    assert compute("spearman", x, y).value == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_spearman_gives_ties_their_average_rank():
    """Ranks of x are 1.5, 1.5, 3, 4 and of y 1, 2, 3, 4: covariance 4.5 of variances 4.5 and 5."""
    assert measure("spearman", np.array([7.0, 7.0, 8.0, 9.0]), np.array([1.0, 2.0, 3.0, 4.0])).value == pytest.approx(
        4.5 / (4.5 * 5) ** 0.5)


@WAYS
@pytest.mark.parametrize(("name", "golden_name"), [
    ("accuracy", "accuracy"), ("f1", "f1"), ("matthews", "mcc"), ("pearson", "pearson"), ("spearman", "spearman")])
def test_golden_vectors(compute, golden, name, golden_name):
    vectors = np.load(golden / "01_task.npz")
    kind = "score" if name in SCORE_METRICS else "bin"
    found = compute(name, vectors[f"in.{kind}_pred"], vectors[f"in.{kind}_label"])
    assert found.value == pytest.approx(float(vectors[f"out.{golden_name}"]), abs=1e-9)


@WAYS
@pytest.mark.parametrize(("name", "predictions", "labels"), [
    ("matthews", [1, 1, 1, 1], [0, 1, 0, 1]), ("matthews", [0, 1, 0, 1], [1, 1, 1, 1]), ("f1", [0, 0], [0, 0]),
    ("pearson", [2.5, 2.5, 2.5], [1.0, 2.0, 3.0]), ("spearman", [2.5, 2.5, 2.5], [1.0, 2.0, 3.0]),
    ("pearson", [1.0], [1.0])])
def test_undefined_values_are_zero_and_degenerate(compute, name, predictions, labels):
    assert compute(name, np.array(predictions), np.array(labels)) == Measured(0.0, True)


def test_f1_is_defined_as_soon_as_class_one_is_predicted_or_there():
    assert measure("f1", np.array([0, 0]), np.array([0, 1])) == Measured(0.0, False)


def test_matthews_and_accuracy_of_three_classes_agree_with_scikit_learn():
    from sklearn.metrics import matthews_corrcoef

    draw = np.random.default_rng(0)
    labels, predictions = draw.integers(0, 3, 200), draw.integers(0, 3, 200)
    assert measure("matthews", predictions, labels).value == pytest.approx(matthews_corrcoef(labels, predictions))


@WAYS
@pytest.mark.parametrize("name", CLASS_METRICS)
def test_floats_are_refused_where_classes_are_compared(compute, name):
    """An int64 column would turn 0.7 into class 0 without a word."""
    with pytest.raises(UserError, match=f"metric {name} compares class ids, but the predictions are float64"):
        compute(name, np.array([0.7, 0.2]), np.array([1, 0]))


@WAYS
@pytest.mark.parametrize("name", SCORE_METRICS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_refused(compute, name, bad):
    with pytest.raises(UserError, match=rf"metric {name}: predictions hold {bad} at row 1"):
        compute(name, np.array([0.1, bad, 0.3]), np.array([1.0, 2.0, 3.0]))


@WAYS
def test_hidden_labels_are_refused(compute):
    with pytest.raises(UserError, match="labels hold -1 at row 2"):
        compute("accuracy", np.array([0, 1, 1]), np.array([0, 1, -1]))


@pytest.mark.parametrize(("predictions", "labels"), [([0, 1], [0]), ([], []), ([[0, 1]], [[0, 1]])])
def test_lists_that_do_not_pair_up_are_refused(predictions, labels):
    with pytest.raises(UserError, match="two lists of equal length"):
        measure("accuracy", np.array(predictions, dtype=np.int64), np.array(labels, dtype=np.int64))


def test_f1_of_three_classes_names_the_alternative():
    with pytest.raises(UserError, match="class 2 occurs; use macro_f1"):
        measure("f1", np.array([0, 2]), np.array([0, 1]))


def test_an_unknown_metric_names_the_near_ones():
    with pytest.raises(UserError, match="metric 'acuracy' is unknown; did you mean 'accuracy'"):
        measure("acuracy", PREDICTED, TRUE)


def test_one_row_at_a_time_is_checked_too():
    module = evaluate_modules.Accuracy()
    module.add(prediction=1, reference=1)
    with pytest.raises(UserError, match="float64"):
        module.add(prediction=0.7, reference=1)


def test_modules_work_with_evaluates_own_combination():
    import evaluate

    both = evaluate.combine([evaluate_modules.Accuracy(), evaluate_modules.F1()])
    found = both.compute(predictions=PREDICTED, references=TRUE)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["f1"] == pytest.approx(4 / 6)


def test_modules_leave_nothing_behind(tmp_path, monkeypatch):
    """The base class would make folders under the user's home."""
    import evaluate.config

    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)
    evaluate_modules.measure("accuracy", PREDICTED, TRUE)
    assert not list(tmp_path.iterdir())


def test_every_metric_has_a_module():
    assert set(evaluate_modules.MODULES) == {*CLASS_METRICS, *SCORE_METRICS}


def test_decisions():
    logits = torch.tensor([[0.1, 0.9], [2.0, -1.0]])
    assert decide(logits, regression=False).tolist() == [1, 0]
    assert decide(torch.tensor([[1.5], [2.5]]), regression=True).tolist() == [1.5, 2.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_is_named_with_the_first_row(bad):
    with pytest.raises(UserError, match=r"1 of 3 rows of logits are not finite \(first: row 1\)"):
        decide(torch.tensor([[0.0, 1.0], [bad, 0.0], [1.0, 0.0]]), regression=False)


class TestScore:
    """Of a whole split."""

    def logits(self, classes):
        return torch.nn.functional.one_hot(torch.tensor(classes), 2).float()

    def test_all_metrics_of_the_dataset(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", metrics=("f1", "accuracy"), splits=(
            split("validation", "select", 6, SENTIMENT),), answers={"validation": TRUE.tolist()})
        found = score(prepared, "validation", self.logits(PREDICTED.tolist()))
        assert found == {"f1": pytest.approx(2 / 3), "accuracy": pytest.approx(2 / 3), "degenerate": False, "n": 6}
        assert selection_score(found, prepared.info) == pytest.approx(2 / 3)

    def test_selection_is_the_mean_of_two_metrics(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", metrics=("f1", "accuracy"))
        assert selection_score({"f1": 0.9, "accuracy": 0.7, "n": 10, "degenerate": False}, prepared.info) == 0.8

    def test_the_same_answer_everywhere_is_degenerate_also_for_accuracy(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", splits=(split("validation", "select", 4, SENTIMENT),),
                                  answers={"validation": [0, 1, 1, 1]})
        found = score(prepared, "validation", self.logits([1, 1, 1, 1]))
        assert found == {"accuracy": 0.75, "degenerate": True, "n": 4}

    def test_regression_reads_one_column(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", None, ("pearson", "spearman"),
                                  (split("validation", "select", 3, None),), answers={"validation": [1.0, 2.0, 4.0]})
        found = score(prepared, "validation", torch.tensor([[0.5], [1.0], [2.0]]))
        assert found["pearson"] == pytest.approx(1.0)
        assert found["spearman"] == pytest.approx(1.0)

    def test_a_collapsed_regression_is_finite_in_json(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", None, ("pearson", "spearman"),
                                  (split("validation", "select", 3, None),))
        found = json.loads(json.dumps(score(prepared, "validation", torch.full((3, 1), 2.5)), allow_nan=False))
        assert found == {"pearson": 0.0, "spearman": 0.0, "degenerate": True, "n": 3}

    def test_hidden_labels_are_refused_with_the_way_on(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", splits=(split("test", "test", 4, SENTIMENT, hidden=True),))
        with pytest.raises(UserError, match=r"toy/test hides its labels.*written for submission"):
            score(prepared, "test", self.logits([0, 1, 0, 1]))

    def test_a_single_hidden_label_is_refused(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", splits=(split("validation", "select", 3, SENTIMENT),),
                                  answers={"validation": [0, -1, 1]})
        with pytest.raises(UserError, match="labels hold -1 at row 1"):
            score(prepared, "validation", self.logits([0, 1, 0]))

    def test_training_rows_without_labels_do_not_count(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy", splits=(
            split("train", "train", 5, SENTIMENT, unlabelled=2), split("validation", "select", 3, SENTIMENT)),
            answers={"train": [0, 1, 1, -1, -1]})
        found = score(prepared, "train", self.logits([0, 0, 1, 1, 0]))
        assert found == {"accuracy": pytest.approx(2 / 3), "degenerate": False, "n": 3}

    def test_a_part_of_the_predictions_is_refused(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy")
        with pytest.raises(UserError, match="30 rows but 4 predictions"):
            score(prepared, "validation", self.logits([0, 1, 0, 1]))

    def test_an_unknown_split_is_named(self, tmp_path):
        prepared = write_prepared(tmp_path / "toy")
        with pytest.raises(UserError, match="no split 'validaton'; did you mean 'validation'"):
            score(prepared, "validaton", self.logits([0]))
