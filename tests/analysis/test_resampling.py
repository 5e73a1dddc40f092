"""Metrics on resamples equal the metrics of the resampled rows, drawn one by one."""

import numpy as np
import pytest

from kdcore.analysis.resampling import _METRICS, draw_counts, resampled
from kdcore.evaluation.metrics import CLASS_METRICS, SCORE_METRICS, measure


def problem(name, examples=120, models=3, classes=2):
    draw = np.random.default_rng(0)
    if name in SCORE_METRICS:  # rounded, so that there are ties
        labels = np.round(5 * draw.random(examples), 1)
        return np.stack([np.round(labels + draw.normal(size=examples), 1) for _ in range(models)]), labels
    labels = draw.integers(0, classes, examples)
    noise = draw.integers(0, classes, (models, examples))
    return np.where(draw.random((models, examples)) < 0.7, labels, noise), labels


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", [*CLASS_METRICS, *SCORE_METRICS])
def test_equals_the_metric_of_the_drawn_rows(name, classes):
    if name == "f1" and classes > 2:
        pytest.skip("F1 is of class 1 against class 0")
    predictions, labels = problem(name, classes=classes)
    counts = next(draw_counts(len(labels), 6, seed=1))
    found = resampled(name, predictions, labels, 6, seed=1)
    for row, drawn in zip(found, counts, strict=True):
        chosen = np.repeat(np.arange(len(labels)), drawn.astype(int))
        assert row == pytest.approx([measure(name, model[chosen], labels[chosen]).value for model in predictions])


def test_every_metric_can_be_resampled():
    assert set(_METRICS) == {*CLASS_METRICS, *SCORE_METRICS}


@pytest.mark.parametrize("name", ["f1", "macro_f1", "matthews", "pearson", "spearman"])
def test_undefined_resamples_are_zero(name):
    """Of three rows, one in nine resamples draws the same row three times."""
    found = resampled(name, np.array([[0, 1, 1], [0, 0, 0]]), np.array([0, 1, 1]), 200, seed=0)
    assert np.isfinite(found).all()
    if name != "macro_f1":
        assert (found[:, 1] == 0).all()
        assert (found[:, 0] == 0).any()


def test_counts_draw_every_resample_whole_and_evenly():
    counts = np.concatenate(list(draw_counts(50, 4000, seed=0)))
    assert counts.shape == (4000, 50)
    assert (counts.sum(axis=1) == 50).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.1)


def test_blocks_do_not_change_the_draws(monkeypatch):
    whole = np.concatenate(list(draw_counts(50, 20, seed=3)))
    monkeypatch.setattr("kdcore.analysis.resampling._ENTRIES", 150)
    blocks = list(draw_counts(50, 20, seed=3))
    assert len(blocks) == 7
    assert np.array_equal(np.concatenate(blocks), whole)


def test_equal_seeds_give_equal_resamples():
    predictions, labels = problem("accuracy")
    first, again, other = (resampled("accuracy", predictions, labels, 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
