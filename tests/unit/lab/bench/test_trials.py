"""Intervals: what they cover, by simulation and enumeration."""

import itertools

import numpy as np
import pytest

from alora.lab.bench.objections import AA_COVERAGE, biased_aa
from alora.lab.bench.trials import mean_ratio, median_interval, paired_ratio


@pytest.mark.parametrize("count", range(2, 9))
def test_an_interval_of_few_rounds_says_how_little_it_covers(count):
    """By enumeration: each value lies above or below the median with equal chance."""
    interval = median_interval(range(count))
    sides = list(itertools.product((0, 1), repeat=count))
    within = sum(0 < sum(side) < count for side in sides) / len(sides)
    assert interval.coverage == pytest.approx(min(0.95, within))
    assert 0 <= interval.low <= interval.value <= interval.high <= count - 1


def test_ratios_are_paired_by_round():
    """What drifts in the machine hits both sides."""
    drift = [1.0, 2.0, 4.0, 8.0]
    ratio = paired_ratio([3 * one for one in drift], drift)
    assert (ratio.value, ratio.low, ratio.high) == (3.0, 3.0, 3.0)


def test_the_a_a_interval_covers_what_it_says():
    """By simulation, at the few rounds that a run has; the control is a narrower interval."""
    generator = np.random.default_rng(0)
    rounds = np.exp(generator.normal(0.0, 0.05, size=(1000, 3)))
    for coverage in (AA_COVERAGE, 0.5):
        held = np.mean([mean_ratio(ratios, coverage).contains(1.0) for ratios in rounds])
        assert held == pytest.approx(coverage, abs=0.04)


def test_an_a_a_run_that_is_slower_in_every_round_is_seen_in_three():
    assert [one.code for one in biased_aa(mean_ratio([1.1, 1.11, 1.09], AA_COVERAGE))] == ["BIASED_AA"]
    assert biased_aa(mean_ratio([0.97, 1.04, 1.01], AA_COVERAGE)) == []
    assert [one.code for one in biased_aa(mean_ratio([0.5, 2.0, 1.01], AA_COVERAGE))] == ["NOISY_AA"]
