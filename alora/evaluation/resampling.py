"""The bootstrap, shared by metrics and thresholds: how often each row is drawn, and the counts that follow.

A resample is a vector of draw counts, not a list of rows, so a figure that takes counts computes all resamples in one
sweep. ``numpy.ones((1, N))`` are the rows themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CELLS_AT_ONCE = 2_000_000  # resamples x rows held in memory at a time
COVERAGE = (2.5, 97.5)  # percentiles of every interval: 95 %

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def draw_counts(rows: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Draw counts of ``resamples`` bootstrap samples of ``rows`` rows, as chunks ``counts_SN``."""
    generator = np.random.default_rng(seed)
    chunk = max(1, CELLS_AT_ONCE // max(rows, 1))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        yield generator.multinomial(rows, np.full(rows, 1.0 / rows), size=size).astype(np.float64)


@dataclass(frozen=True)
class Sweep:
    """Hits and false alarms of every possible threshold, from "never" (column 0) to "always" (column K).

    ``values_K`` are the distinct probabilities, highest first; column ``k`` fires on the first ``k`` of them.
    ``hits_SK1`` and ``alarms_SK1`` count rows of the positive label and of the others that fire.
    """

    values_K: Floats
    hits_SK1: Floats
    alarms_SK1: Floats

    @property
    def positives_S1(self) -> Floats:
        return self.hits_SK1[:, -1:]

    @property
    def negatives_S1(self) -> Floats:
        return self.alarms_SK1[:, -1:]


def sweep(positive_N: Flags, probability_N: Floats, counts_SN: Floats) -> Sweep:
    """Count hits and false alarms at every threshold; rows of equal probability fire together."""
    order = np.argsort(-probability_N, kind="stable")
    ranked_N = probability_N[order]
    starts_K = np.flatnonzero(np.r_[True, ranked_N[1:] != ranked_N[:-1]])
    counts_SN = counts_SN[:, order]
    hits, alarms = (
        np.cumsum(np.add.reduceat(counts_SN * flags_N, starts_K, axis=1), axis=1)
        for flags_N in (positive_N[order], ~positive_N[order])
    )
    never_S1 = np.zeros((len(counts_SN), 1))
    return Sweep(ranked_N[starts_K], np.hstack([never_S1, hits]), np.hstack([never_S1, alarms]))


def auroc(curve: Sweep) -> Floats:
    """Per resample the area under the ROC; NaN where it is of one class."""
    gained_SK, raised_SK = np.diff(curve.hits_SK1), np.diff(curve.alarms_SK1)
    below_SK = curve.hits_SK1[:, :-1] + gained_SK / 2  # ties count half
    return ratio((raised_SK * below_SK).sum(axis=1), (curve.positives_S1 * curve.negatives_S1)[:, 0])


def ratio(numerator: Floats, denominator: Floats, empty: float = float("nan")) -> Floats:
    """``numerator / denominator``, and ``empty`` where the denominator is zero."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    return np.divide(numerator, denominator, out=np.full(numerator.shape, empty), where=denominator != 0)
