"""Models on sets with other classes: by name, collapsed as documented."""

import numpy as np
import pytest
import torch

from kdcore.errors import UserError
from kdcore.evaluation.metrics import score
from kdcore.evaluation.ood import collapse, collapsed_probabilities, collapses
from tests.evaluation.synthetic import NLI, SENTIMENT, split, write_prepared

TO_SCITAIL = {"entailment": "entailment", "neutral": "neutral", "contradiction": "neutral"}
SCITAIL = split("scitail", "ood", 3, ("entailment", "neutral"), label_map=TO_SCITAIL)
# p(entailment) 0.45, 0.2, 0.5; p(neutral) + p(contradiction) 0.55, 0.8, 0.5
LOGITS = torch.log(torch.tensor([[0.45, 0.30, 0.25], [0.20, 0.70, 0.10], [0.50, 0.26, 0.24]]))


def test_three_rows_by_argmax_and_by_summed_probability(tmp_path):
    """Row 0: entailment is the most probable class, but less probable than the other two together."""
    prepared = write_prepared(tmp_path / "toy", NLI, splits=(SCITAIL,), answers={"scitail": [0, 1, 0]})
    found = score(prepared, "scitail", LOGITS)
    assert found == {"accuracy": 1.0, "accuracy_prob_sum": pytest.approx(2 / 3), "degenerate": False, "n": 3}


def test_summed_probabilities():
    sums = collapsed_probabilities(LOGITS, NLI, SCITAIL)
    torch.testing.assert_close(sums, torch.tensor([[0.45, 0.55], [0.20, 0.80], [0.50, 0.50]], dtype=torch.float64),
                               atol=1e-6, rtol=0)


def test_the_order_of_the_sets_own_classes_does_not_matter(tmp_path):
    """Names decide: with the ids of the set swapped, swapped labels give the same accuracy."""
    turned = split("scitail", "ood", 3, ("neutral", "entailment"), label_map=TO_SCITAIL)
    assert collapse(NLI, turned).tolist() == [1, 0, 0]
    prepared = write_prepared(tmp_path / "toy", NLI, splits=(turned,), answers={"scitail": [1, 0, 1]})
    assert score(prepared, "scitail", LOGITS)["accuracy"] == 1.0


def test_the_order_of_the_datasets_classes_does_not_matter():
    other = ("contradiction", "entailment", "neutral")
    assert collapse(other, SCITAIL).tolist() == [1, 0, 1]


def test_two_classes_with_other_names_do_not_collapse(tmp_path):
    imdb = split("imdb", "ood", 4, ("pos", "neg"), label_map={"negative": "neg", "positive": "pos"})
    prepared = write_prepared(tmp_path / "toy", SENTIMENT, splits=(imdb,), answers={"imdb": [0, 1, 0, 1]})
    found = score(prepared, "imdb", torch.eye(2)[[1, 0, 1, 0]])
    assert found == {"accuracy": 1.0, "degenerate": False, "n": 4}
    assert not collapses(SENTIMENT, imdb)


def test_names_that_agree_need_no_map():
    assert collapse(SENTIMENT, split("amazon", "ood", 4, ("positive", "negative"))).tolist() == [1, 0]


def test_a_label_without_counterpart_is_refused():
    with pytest.raises(UserError, match="scitail: label 'contradiction' maps to 'contradiction', which it does not"):
        collapse(NLI, split("scitail", "ood", 3, ("entailment", "neutral")))


def test_a_class_that_can_never_be_predicted_is_refused():
    with pytest.raises(UserError, match="none of the labels negative, positive maps to its 'mixed'"):
        collapse(SENTIMENT, split("reviews", "ood", 3, ("negative", "positive", "mixed")))


def test_scores_are_compared_by_correlation(tmp_path):
    rated = split("amazon", "ood", 4, None)
    prepared = write_prepared(tmp_path / "toy", None, ("pearson", "spearman"), (rated,),
                              answers={"amazon": [1, 2, 3, 4]})
    found = score(prepared, "amazon", torch.tensor([[2.0], [4.0], [6.0], [8.0]]))
    assert found["pearson"] == pytest.approx(1.0)
    assert "accuracy" not in found


def test_a_model_that_collapses_to_one_class_out_of_domain_is_degenerate(tmp_path):
    prepared = write_prepared(tmp_path / "toy", NLI, splits=(SCITAIL,), answers={"scitail": [1, 1, 0]})
    assert score(prepared, "scitail", torch.log(torch.tensor([[0.1, 0.8, 0.1]] * 3)))["degenerate"]
    assert np.isfinite(score(prepared, "scitail", LOGITS)["accuracy"])
