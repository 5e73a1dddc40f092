"""Summaries by hand; intervals of known truth: coverage, pairing, verdicts."""

import numpy as np
import pytest

from kdcore.analysis.resampling import resampled
from kdcore.analysis.statistics import Difference, corrected, difference, interval, summarise


def test_mean_and_sample_deviation():
    found = summarise([0.8, 0.9, 1.0])
    assert found.mean == pytest.approx(0.9)
    assert found.sd == pytest.approx(0.1)
    assert found.n == 3


def test_one_value_has_no_deviation():
    assert summarise([0.8]).sd is None


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="nothing to summarise"):
        summarise([])


def test_the_interval_of_a_mean():
    """By the table of Student's t: 2.776 at four degrees of freedom."""
    low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low + high) / 2 == pytest.approx(3)
    assert (high - low) / 2 == pytest.approx(2.776 * 1.5811 / 5**0.5, rel=1e-3)
    assert interval([2.0, 2.0]) == (2, 2)
    with pytest.raises(ValueError, match="one value has no interval"):
        interval([1.0])


def compare(ours, baseline, labels, seed=0, resamples=600):
    """Predictions [s, n] of both."""
    seeds = len(ours)
    both = np.concatenate([ours, baseline])
    values, draws = (both == labels).mean(axis=1), resampled("accuracy", both, labels, resamples, seed)
    return difference(values[:seeds], values[seeds:], draws[:, :seeds], draws[:, seeds:])


def simulated(draw, seeds, examples, gain, seed_noise):
    """Two methods on the same examples: shared difficulty, own noise per example, own noise per seed."""
    from scipy.stats import norm

    difficulty = draw.normal(size=examples)
    systems = []
    for accuracy in (0.8 + gain, 0.8):
        thresholds = norm.ppf(np.clip(accuracy + seed_noise * draw.normal(size=seeds), 0.01, 0.99))
        skill = np.sqrt(0.6) * difficulty + np.sqrt(0.4) * draw.normal(size=(seeds, examples))
        systems.append((skill < thresholds[:, None]).astype(int))
    return systems[0], systems[1], np.ones(examples, dtype=int)


@pytest.mark.parametrize(("seeds", "examples", "seed_noise"), [(3, 500, 0.0), (3, 800, 0.03), (5, 800, 0.03)],
                         ids=["examples matter", "seeds matter", "five seeds"])
def test_intervals_cover_the_truth(seeds, examples, seed_noise):
    """95 % nominal; a bootstrap that also resamples three seeds covers 85 to 89 % where seeds matter."""
    draw = np.random.default_rng(7)
    trials, covered = 200, 0
    for trial in range(trials):
        found = compare(*simulated(draw, seeds, examples, 0.01, seed_noise), seed=trial, resamples=300)
        covered += found.low <= 0.01 <= found.high
    assert covered / trials >= 0.92


def test_a_difference_that_is_not_there_is_seldom_found():
    draw = np.random.default_rng(3)
    verdicts = [compare(*simulated(draw, 3, 500, 0.0, 0.01), seed=trial, resamples=300).verdict for trial in range(100)]
    assert verdicts.count("not distinguishable") >= 92


def test_a_clear_difference_is_found_in_both_directions():
    ours, baseline, labels = simulated(np.random.default_rng(0), 5, 2000, 0.1, 0.005)
    assert compare(ours, baseline, labels).verdict == "better"
    assert compare(baseline, ours, labels).verdict == "worse"


def test_swapping_the_two_mirrors_mean_and_effect():
    ours, baseline, labels = simulated(np.random.default_rng(0), 3, 500, 0.02, 0.01)
    forth, back = compare(ours, baseline, labels), compare(baseline, ours, labels)
    assert back.mean == pytest.approx(-forth.mean)
    assert back.in_sd == pytest.approx(-forth.in_sd)
    assert forth.low <= forth.mean <= forth.high


def test_pairing_by_example_narrows_the_interval():
    """Two methods that err on nearly the same rows differ less noisily than two that err anywhere."""
    draw = np.random.default_rng(1)
    labels = np.ones(1000, dtype=int)
    base = (draw.random((3, 1000)) < 0.8).astype(int)
    twin = base.copy()
    twin[:, :20] = 1
    other = (draw.random((3, 1000)) < twin.mean()).astype(int)
    paired, apart = compare(twin, base, labels), compare(other, base, labels)
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)


def test_the_same_method_twice_is_not_distinguishable():
    ours, _, labels = simulated(np.random.default_rng(0), 3, 200, 0.0, 0.01)
    found = compare(ours, ours, labels)
    assert (found.mean, found.low, found.high, found.verdict) == (0.0, 0.0, 0.0, "not distinguishable")


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_are_not_tested(seeds):
    found = difference(np.full(seeds, 0.9), np.full(seeds, 0.5), None, None)
    assert found.verdict == "not tested"
    assert found.low is None
    assert found.high is None
    assert found.mean == pytest.approx(0.4)


def test_in_units_of_the_pooled_deviation():
    found = difference(np.array([0.80, 0.82]), np.array([0.70, 0.72]), None, None)
    assert found.in_sd == pytest.approx(0.1 / np.sqrt(0.0002))


def test_no_spread_gives_no_units():
    assert difference(np.array([0.8, 0.8]), np.array([0.7, 0.7]), None, None).in_sd is None


def test_equal_seeds_give_equal_intervals():
    ours, baseline, labels = simulated(np.random.default_rng(0), 3, 200, 0.05, 0.01)
    assert compare(ours, baseline, labels) == compare(ours, baseline, labels)


@pytest.mark.parametrize("examples", [40, 60, 71, 100, 277])
@pytest.mark.parametrize("more", [3, 5, 8])
def test_seeds_that_gain_the_same_rows_are_never_worse(examples, more):
    """Then nothing but the draw of examples is noise, and some draws have none of these rows."""
    labels = np.ones(examples, dtype=int)
    baseline = np.ones((3, examples), dtype=int)
    baseline[:, :examples // 4] = 0
    ours = baseline.copy()
    ours[:, :more] = 1
    for seed in range(3):
        forth = compare(ours, baseline, labels, seed=seed, resamples=300)
        back = compare(baseline, ours, labels, seed=seed, resamples=300)
        assert (forth.p < 0.05) == (forth.low > 0)
        assert forth.verdict == ("better" if forth.p < 0.05 else "not distinguishable")
        assert back.verdict == ("worse" if back.p < 0.05 else "not distinguishable")


def test_p_and_the_interval_say_the_same():
    """p is under 0.05 exactly where the interval leaves 0 out."""
    draw, seen = np.random.default_rng(5), []
    for _ in range(60):
        found = compare(*simulated(draw, 5, 400, 0.03, 0.005), resamples=300)
        outside = found.low > 0 or found.high < 0
        assert (found.p < 0.05) == outside == (found.verdict != "not distinguishable")
        seen.append(outside)
    assert 5 < sum(seen) < 55, "both kinds were looked at"


def test_where_examples_make_no_noise_it_is_the_t_test():
    """Student's t on the seeds' differences: scipy's p and interval."""
    from scipy.stats import ttest_rel

    ours, baseline = np.array([0.80, 0.83, 0.85, 0.84]), np.array([0.79, 0.80, 0.81, 0.83])
    same = np.tile(ours - baseline, (1000, 1)), np.zeros((1000, 4))
    found, expected = difference(ours, baseline, *same), ttest_rel(ours, baseline)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-8)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-8), pytest.approx(high, abs=1e-8))


def test_where_seeds_make_no_noise_it_is_the_bootstrap():
    draws = np.random.default_rng(0).normal(0.02, 0.01, 4000)
    ours, baseline = np.tile(draws[:, None], (1, 3)), np.zeros((4000, 3))
    found = difference(np.full(3, 0.02), np.zeros(3), ours, baseline)
    assert (found.low, found.high) == tuple(pytest.approx(q, abs=1e-4) for q in np.quantile(draws, [0.025, 0.975]))
    assert found.p == pytest.approx(2 * (draws < 0).mean(), abs=1e-9)


def family_of(*values, low=0.001):
    return [Difference(0.01, low, 0.02, p, p, 1.0, 3, "better") if p is not None else
            Difference(0.01, None, None, None, None, 1.0, 2, "not tested") for p in values]


def test_correction_for_many_comparisons():
    """By hand: 0.01 times 4, 0.02 times 3, 0.03 times 2 (which is no less than 0.06 before it), 0.5 times 1."""
    found = corrected(family_of(0.03, 0.01, 0.5, None, 0.02))
    assert [one.p_corrected for one in found] == [pytest.approx(0.06), pytest.approx(0.04), pytest.approx(0.5), None,
                                                  pytest.approx(0.06)]
    assert [one.p for one in found] == [0.03, 0.01, 0.5, None, 0.02]
    assert [one.verdict for one in found] == ["not distinguishable", "better", "not distinguishable", "not tested",
                                              "not distinguishable"]


def test_corrected_p_never_exceeds_one_and_a_family_of_one_is_as_it_was():
    assert [one.p_corrected for one in corrected(family_of(0.6, 0.7))] == [1.0, 1.0]
    assert corrected(family_of(0.04)) == family_of(0.04)
    assert corrected([]) == []


def test_a_family_without_differences_seldom_has_a_false_one():
    """Ten comparisons against one baseline: uncorrected, a third of such families has a false difference."""
    draw, false, uncorrected = np.random.default_rng(11), 0, 0
    for _ in range(60):
        values = 0.8 + 0.01 * draw.normal(size=(11, 5))
        pairs = [difference(ours, values[0], np.tile(ours, (50, 1)), np.tile(values[0], (50, 1)))
                 for ours in values[1:]]
        uncorrected += any(one.verdict != "not distinguishable" for one in pairs)
        false += any(one.verdict != "not distinguishable" for one in corrected(pairs))
    assert false <= 6 < uncorrected
