"""Classes are matched by name (lessons A55, A57)."""

import logging

import pytest

from kdcore.errors import UserError
from kdcore.models.labels import align, names_of, same_names
from tests.tiny import tiny_config

NLI = ("entailment", "neutral", "contradiction")


def test_permuted_names_give_the_columns_in_dataset_order():
    assert align(("CONTRADICTION", "neutral", "Entailment"), NLI, "the teacher") == (2, 1, 0)


@pytest.mark.parametrize("spelling", ["not_entailment", "not entailment", "Not-Entailment", "NOT_ENTAILMENT"])
def test_case_spaces_and_underscores_do_not_count(spelling):
    assert align(("entailment", spelling), ("not_entailment", "entailment"), "m") == (1, 0)


def test_two_unnamed_classes_are_taken_in_order_and_said(caplog):
    with caplog.at_level(logging.WARNING):
        assert align(("LABEL_0", "LABEL_1"), ("negative", "positive"), "the teacher") == (0, 1)
    assert "LABEL_0" in caplog.text
    assert "negative" in caplog.text


def test_datasets_may_themselves_use_generic_names():
    assert align(("LABEL_1", "LABEL_0"), ("LABEL_0", "LABEL_1"), "m") == (1, 0)


@pytest.mark.parametrize(("own", "labels", "says"), [
    (("LABEL_0", "LABEL_1", "LABEL_2"), NLI, "id2label"),
    (("a", "b", "c"), NLI, "calls its classes a, b, c"),
    (("a", "b"), ("negative", "positive"), "calls its classes a, b"),
    (("entailment", "neutral"), NLI, "has 2 outputs"),
    (("x", "X ", "y"), NLI, "the same name"),
    (("a", "b"), None, "needs 1 (score)"),
])
def test_names_that_do_not_match_are_errors(own, labels, says):
    with pytest.raises(UserError) as caught:
        align(own, labels, "the teacher")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_regression_needs_one_output_of_any_name():
    assert align(("LABEL_0",), None, "m") == (0,)


def test_names_of_sorts_ids_as_numbers_even_as_strings():
    config = tiny_config("bert")
    config.id2label = {"10": "k", "2": "c", "0": "a"}
    assert names_of(config) == ("a", "c", "k")


def test_same_names_needs_all_of_them():
    assert same_names(("A b",), ("a_b",))
    assert not same_names(("a", "b"), ("a",))
