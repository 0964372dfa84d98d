"""Intervals: the bootstrap over rounds for latencies, order statistics of paired rounds for ratios."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from alora.bench.measure import Interval
from alora.evaluation.resampling import COVERAGE

RESAMPLES = 1000
FIGURES = ("mean", "p50", "p95", "p99")
_SEED = 0
_MOST = 20_000  # ways to deal samples out that are all tried; beyond, so many are drawn


def figures(values: np.ndarray) -> dict[str, Any]:
    """Mean and percentiles of latencies, along the last axis."""
    low, high, highest = np.percentile(values, [50, 95, 99], axis=-1)
    return {"mean": values.mean(axis=-1), "p50": low, "p95": high, "p99": highest}


def summary(rounds: Sequence[Sequence[float]], resamples: int | None = None) -> dict[str, dict[str, float]]:
    """Each figure over all samples, with a 95 % bootstrap interval; ``rounds`` holds the samples of each round.

    Whole rounds are drawn, and then samples inside each, because samples of one round share what the machine did in it:
    drawing samples alone would call twenty requests of one burst twenty measurements.
    """
    resamples = RESAMPLES if resamples is None else resamples
    generator = np.random.default_rng(_SEED)
    held = [np.asarray(samples, dtype=float) for samples in rounds if len(samples)]
    if not held:
        return {}
    chosen = generator.integers(0, len(held), size=(resamples, len(held)))
    if len({len(samples) for samples in held}) == 1:  # all draws at once
        picks = generator.integers(0, len(held[0]), size=(*chosen.shape, len(held[0])))
        drawn = figures(np.stack(held)[chosen[:, :, None], picks].reshape(resamples, -1))
    else:
        draws = [[generator.choice(held[place], size=len(held[place])) for place in row] for row in chosen]
        found = [figures(np.concatenate(parts)) for parts in draws]
        drawn = {name: np.array([one[name] for one in found]) for name in FIGURES}
    whole = figures(np.concatenate(held))
    return {name: {"value": float(whole[name]), **_bounds(drawn[name])} for name in FIGURES}


def ratio_of_medians(slow: Sequence[float], fast: Sequence[float], resamples: int = RESAMPLES) -> Interval:
    """Ratio of the medians of two runs that share no rounds, with a 95 % bootstrap interval."""
    generator = np.random.default_rng(_SEED)
    one, other = np.asarray(slow, dtype=float), np.asarray(fast, dtype=float)
    medians = [np.median(generator.choice(held, size=(resamples, len(held))), axis=1) for held in (one, other)]
    bounds = _bounds(medians[0] / medians[1])
    return Interval(float(np.median(one) / np.median(other)), bounds["low"], bounds["high"], 0.95)


def mean_ratio(ratios: Sequence[float], coverage: float) -> Interval:
    """Geometric mean of a few rounds' ratios with Student's interval of their logarithms.

    Order statistics of three rounds cover 75 % at the most, and would call one fair run in four unfair. This takes the
    logarithms for normal, which ratios of sums of many requests' seconds nearly are.
    """
    logs = np.log(np.asarray(ratios, dtype=float))
    mean, count = float(logs.mean()), len(logs)
    if count < 2:
        return Interval(math.exp(mean), 0.0, math.inf, coverage)
    half = float(student.ppf((1 + coverage) / 2, count - 1) * logs.std(ddof=1) / math.sqrt(count))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), coverage)


def rearranged(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided chance of a difference of mean logarithms as large as this one, if both came from one source.

    Every way to deal the samples out to two runs of these sizes is tried (a permutation test), which assumes no
    distribution; so it can never be below :func:`least_chance`.
    """
    logs = np.log(np.asarray([*one, *other], dtype=float))
    dealt = _dealt(len(one), len(other))
    means = logs[dealt].mean(axis=1)
    rest = (logs.sum() - len(one) * means) / len(other)
    gaps = np.abs(means - rest)
    mine = abs(logs[: len(one)].mean() - logs[len(one) :].mean())
    return float((gaps >= mine * (1 - 1e-12) - 1e-15).mean())


def least_chance(one: int, other: int) -> float:
    """The smallest chance that :func:`rearranged` can find with so many samples in each run."""
    return min(1.0, (2 if one == other else 1) / min(math.comb(one + other, one), _MOST))


@functools.cache
def _dealt(one: int, other: int) -> np.ndarray:
    """Places of the first run's samples in every dealing; the dealing as it was comes first."""
    if math.comb(one + other, one) <= _MOST:
        return np.asarray(list(itertools.combinations(range(one + other), one)))
    generator = np.random.default_rng(_SEED)
    drawn = generator.permuted(np.tile(np.arange(one + other), (_MOST, 1)), axis=1)[:, :one]
    drawn[0] = np.arange(one)
    return drawn


def holm(chances: Sequence[float]) -> list[float]:
    """Chances corrected for being many (Holm 1979, Scand. J. Statist. 6:65): the chance of even one false alarm."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    found, highest = [1.0] * len(chances), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[place]))
        found[place] = highest
    return found


def plain(found: Mapping[str, Mapping[str, float]], digits: int = 3) -> dict[str, Any]:
    """Rounded, for a report."""
    return {name: {key: round(value, digits) for key, value in entry.items()} for name, entry in found.items()}


def _bounds(drawn: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(drawn, COVERAGE)
    return {"low": float(low), "high": float(high)}
