"""Ranks by hand; Friedman and Nemenyi against the worked example and the tables of Demsar (2006)."""

import numpy as np
import pytest

from kdcore.analysis.ranks import critical_difference, fewest_datasets, rank


@pytest.mark.parametrize(("methods", "datasets", "expected"), [(4, 14, 1.25), (3, 1, 2.343 * 2**0.5), (10, 10, 4.28)])
def test_critical_differences(methods, datasets, expected):
    """The example of section 3.2.3, and q of table 5 (a): 2.343 for 3 methods, 3.164 for 10."""
    assert critical_difference(methods, datasets) == pytest.approx(expected, abs=0.01)


def test_ranks_by_hand():
    found = rank({"a": [0.9, 0.8, 0.7], "b": [0.8, 0.9, 0.7], "c": [0.1, 0.2, 0.3]})
    assert dict(found.ranks) == {"a": pytest.approx(1.5), "b": pytest.approx(1.5), "c": pytest.approx(3.0)}
    assert list(found.ranks)[-1] == "c"
    assert found.datasets == 3


def test_friedman_by_its_formula():
    """12 N / (k (k + 1)) times the sum of squared mean ranks, minus 3 N (k + 1), where nothing ties."""
    scores = np.random.default_rng(0).normal(size=(4, 12)) + np.array([[0.0], [0.5], [1.0], [1.5]])
    found = rank(dict(zip("abcd", scores.tolist(), strict=True)))
    squares = sum(mean**2 for mean in found.ranks.values())
    assert found.chi_square == pytest.approx(12 * 12 / 20 * squares - 3 * 12 * 5)
    assert next(iter(found.ranks)) == "d"
    assert 0 < found.p < 0.05


def test_methods_that_never_differ():
    found = rank({name: [0.5, 0.6, 0.7] for name in "abc"})
    assert set(found.ranks.values()) == {2.0}
    assert found.p == 1.0
    assert [set(group) for group in found.groups] == [set("abc")]


def test_groups_are_the_largest_sets_within_the_critical_difference():
    """Ranks 1, 2, 3, 4 at 20 datasets lie 1.05 apart where they differ: neighbours share a group, others do not."""
    found = rank({name: [1.0 - place / 10] * 20 for place, name in enumerate("abcd")})
    assert found.critical == pytest.approx(1.05, abs=0.01)
    assert found.groups == (("a", "b"), ("b", "c"), ("c", "d"))


def test_all_are_one_group_where_friedman_finds_no_difference():
    """The best and the worst lie further apart than Nemenyi asks for, and Friedman's test of all says 0.08."""
    ranks = {"a": (2, 4, 5, 4), "b": (3, 3, 2, 6), "c": (4, 1, 4, 3), "d": (6, 6, 6, 5), "e": (5, 5, 1, 2),
             "f": (1, 2, 3, 1)}
    found = rank({name: [-float(place) for place in places] for name, places in ranks.items()})
    first, *_, last = found.ranks.values()
    assert found.p >= 0.05
    assert last - first > found.critical
    assert found.groups == (tuple(found.ranks),)


@pytest.mark.parametrize(("methods", "expected"), [(3, 3), (8, 3)])
def test_with_fewer_datasets_no_two_could_lie_apart(methods, expected):
    assert fewest_datasets(methods) == expected
    assert critical_difference(methods, expected) <= methods - 1 < critical_difference(methods, expected - 1)
