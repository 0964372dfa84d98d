"""Intervals: the bootstrap over rounds for latencies, order statistics of paired rounds for ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alora.bench.measure import Interval
from alora.evaluation.resampling import COVERAGE

RESAMPLES = 1000
FIGURES = ("mean", "p50", "p95", "p99")
_SEED = 0


def figures(values: np.ndarray) -> dict[str, float]:
    """Mean and percentiles of latencies."""
    low, high, highest = np.percentile(values, [50, 95, 99])
    return {"mean": float(values.mean()), "p50": float(low), "p95": float(high), "p99": float(highest)}


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
    drawn = {name: np.empty(resamples) for name in FIGURES}
    for number in range(resamples):
        chosen = generator.integers(0, len(held), size=len(held))
        parts = [generator.choice(held[place], size=len(held[place])) for place in chosen]
        for name, value in figures(np.concatenate(parts)).items():
            drawn[name][number] = value
    whole = figures(np.concatenate(held))
    return {name: {"value": whole[name], **_bounds(drawn[name])} for name in FIGURES}


def ratio_of_medians(slow: Sequence[float], fast: Sequence[float], resamples: int = RESAMPLES) -> Interval:
    """Ratio of the medians of two runs that share no rounds, with a 95 % bootstrap interval."""
    generator = np.random.default_rng(_SEED)
    one, other = np.asarray(slow, dtype=float), np.asarray(fast, dtype=float)
    drawn = [
        np.median(generator.choice(one, size=len(one))) / np.median(generator.choice(other, size=len(other)))
        for _ in range(resamples)
    ]
    bounds = _bounds(np.asarray(drawn))
    return Interval(float(np.median(one) / np.median(other)), bounds["low"], bounds["high"], 0.95)


def plain(found: Mapping[str, Mapping[str, float]], digits: int = 3) -> dict[str, Any]:
    """Rounded, for a report."""
    return {name: {key: round(value, digits) for key, value in entry.items()} for name, entry in found.items()}


def _bounds(drawn: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(drawn, COVERAGE)
    return {"low": float(low), "high": float(high)}
