"""What is faster beyond the noise, by rates that a test wrote down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5stream.advice.trials import CHANCE, LEAST_GAIN, compare

RUNS = 5
RATES = st.lists(st.floats(1.0, 1e7), min_size=RUNS, max_size=RUNS)


def found_faster(rng, gain, noise, trials=2000):
    """Give the share of comparisons that find a setting faster which is so by `gain`, with noise like a neighbour's."""
    found = 0
    for _ in range(trials):
        ours, theirs = (speed * rng.lognormal(0.0, noise, RUNS) for speed in (gain, 1.0))
        found += compare(list(ours), list(theirs)).is_faster
    return found / trials


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.1, 0.3, 0.6])
def test_equal_settings_are_told_apart_by_chance_once_in_a_hundred_times_at_most(noise):
    assert found_faster(np.random.default_rng(0), 1.0, noise) <= 1.5 * CHANCE


def test_a_gain_of_nine_percent_where_two_runs_differ_by_forty_five_is_none():
    # As it was reported: 1.09 times the rate, and runs of one setting that differ by 45 %.
    noisy = compare([109, 62, 118, 66, 121], [100, 56, 110, 60, 101])
    assert noisy.spread > 0.3
    assert not noisy.is_faster
    assert found_faster(np.random.default_rng(0), 1.09, 0.45) < 0.02


@pytest.mark.parametrize(("gain", "noise"), [(1.10, 0.01), (1.3, 0.04), (2.0, 0.1)])
def test_a_gain_well_beyond_the_noise_is_found(gain, noise):
    assert found_faster(np.random.default_rng(0), gain, noise) > 0.95


def test_less_than_is_worth_another_setting_is_none_however_quiet_it_is():
    assert not compare([1 + LEAST_GAIN / 2] * RUNS, [1.0] * RUNS).is_faster
    assert compare([1 + 2 * LEAST_GAIN] * RUNS, [1.0] * RUNS).is_faster


def test_one_disturbed_run_does_not_hide_a_gain_and_does_not_make_one():
    assert compare([150, 151, 60, 149, 150], [100, 101, 99, 100, 100]).gain == 1.5
    assert compare([150, 151, 149, 152, 150], [100, 101, 40, 100, 100]).is_faster
    assert not compare([100, 101, 99, 100, 300], [100, 101, 99, 100, 100]).is_faster


def test_a_machine_that_slows_down_meanwhile_gives_no_gain():
    slowing = [100 * 0.9**k for k in range(2 * RUNS)]
    # In turns, each first in every second one.
    ours = [slowing[k] for k in range(2 * RUNS) if (k + 1) // 2 % 2 == 0]
    theirs = [slowing[k] for k in range(2 * RUNS) if (k + 1) // 2 % 2 == 1]
    assert not compare(ours, theirs).is_faster
    assert not compare(theirs, ours).is_faster


def test_four_runs_decide_where_they_are_apart_and_two_never_do():
    assert not compare([2.0] * 2, [1.0] * 2).is_faster
    assert compare([2.0] * RUNS, [1.0] * RUNS).is_faster


@given(RATES, RATES)
def test_never_both_ways(ours, theirs):
    assert not (compare(ours, theirs).is_faster and compare(theirs, ours).is_faster)
