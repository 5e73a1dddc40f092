"""The ratio of two interleaved measurements is the true one in spite of noise, and says how sure it is."""

import numpy as np
import pytest

from kdcore.bench.ratios import Ratio, epoch, ratio

STEPS = np.linspace(1.0, 3.0, 10)


def noisy(scale: float, rounds: int, seed: int, drift: np.ndarray | float = 1.0) -> np.ndarray:
    """Seconds of steps of unequal length under 2 % of noise; `drift` [rounds, 1] slows whole rounds down."""
    return scale * STEPS * drift * np.random.default_rng(seed).normal(1, 0.02, (rounds, 10))


def test_without_noise_the_ratio_is_exact_and_its_interval_a_point():
    base = np.tile(STEPS, (4, 1))
    measured = ratio(1.2 * base, base)
    assert (measured.value, measured.low, measured.high) == pytest.approx((1.2, 1.2, 1.2))
    assert epoch(base) == pytest.approx(20)


def test_a_disturbance_of_a_few_steps_changes_nothing():
    base, method = noisy(1, 6, 1), noisy(1.1, 6, 2)
    before = ratio(method, base).value
    method[2] *= 5
    assert ratio(method, base).value == pytest.approx(before, abs=0.02)


def test_rounds_in_which_all_is_slow_change_nothing():
    drift = np.array([1, 2, 1, 3, 1, 2])[:, None]
    measured = ratio(noisy(1.1, 6, 1, drift), noisy(1, 6, 2, drift))
    assert measured.value == pytest.approx(1.1, abs=0.03)


def test_what_is_taken_off_is_taken_off_before_dividing():
    base = np.tile(STEPS, (3, 1))
    assert ratio(1.6 * base, base, less=0.5 * base).value == pytest.approx(1.1)


def test_a_baseline_that_ran_twice_a_round_counts_whole():
    method = np.tile(STEPS, (3, 1))
    base = np.concatenate([method, 3 * method])
    assert ratio(method, base).value == pytest.approx(1 / 2)  # the median of two kinds is their middle


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    found = [ratio(noisy(1.1, 6, 2 * k), noisy(1, 6, 2 * k + 1)) for k in range(100)]
    covered = sum(measured.low <= 1.1 <= measured.high for measured in found)
    assert covered >= 70
    assert all(measured.high - measured.low < 0.06 for measured in found)


def test_verdicts():
    assert Ratio(1.02, 1.01, 1.04).verdict(1.05, noise=0.02) == "met"
    assert Ratio(1.08, 1.06, 1.10).verdict(1.05, noise=0.02) == "missed"
    assert Ratio(1.04, 1.01, 1.07).verdict(1.05, noise=0.0) == "within noise"


def test_no_verdict_is_surer_than_fine_tuning_against_itself():
    noise = Ratio(1.01, 0.96, 1.03).reach
    assert noise == pytest.approx(0.04)
    assert Ratio(1.02, 1.01, 1.03).verdict(1.05, noise) == "within noise"
    assert Ratio(1.08, 1.07, 1.09).verdict(1.05, noise) == "within noise"
    assert Ratio(1.12, 1.11, 1.13).verdict(1.05, noise) == "missed"
