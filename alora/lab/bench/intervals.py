"""Intervals around what was measured: the bootstrap for times and ratios, Student's t for the A/A run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import stats

RESAMPLES = 999
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """A figure with its interval; ``coverage`` is the chance that the interval holds the true value."""

    value: float
    low: float
    high: float
    coverage: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def times(self, factor: float) -> Self:
        return type(self)(self.value * factor, self.low * factor, self.high * factor, self.coverage)


def median_interval(values: Sequence[float]) -> Measured:
    """Median over rounds with a bootstrap interval.

    A bootstrap cannot leave the range of its values, which holds the true median with chance ``1 - 2 / 2^n``: of few
    rounds the interval covers no more than that, and says so.
    """
    value = float(np.median(values))
    if len(values) < 2:
        return Measured(value, value, value, 0.0)
    interval = stats.bootstrap(
        (values,), np.median, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Measured(value, float(interval.low), float(interval.high), min(LEVEL, 1 - 0.5 ** (len(values) - 1)))


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Measured:
    """Ratio ``slow / fast``, round by round: what drifts in the machine hits both sides of a pair."""
    return median_interval([s / f for s, f in zip(slow, fast, strict=True)])


def mean_ratio(ratios: Sequence[float], coverage: float) -> Measured:
    """Geometric mean of a few rounds' ratios with Student's interval of their logarithms.

    Three rounds' range covers 75 %, and would call one fair run in four unfair. This takes the logarithms for normal,
    which ratios of sums of many requests' seconds nearly are.
    """
    logs = np.log(np.asarray(ratios, dtype=float))
    mean = math.exp(float(logs.mean()))
    if np.ptp(logs) == 0.0:  # SciPy warns of constant input
        return Measured(mean, mean, mean, coverage)
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(coverage)
    return Measured(mean, math.exp(interval.low), math.exp(interval.high), coverage)
