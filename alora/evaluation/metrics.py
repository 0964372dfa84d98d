"""Figures of a policy on labelled rows, each with its bootstrap interval.

A resample is a vector of draw counts, not a list of rows, so a figure that takes counts computes all resamples in one
sweep. ``numpy.ones((1, N))`` are the rows themselves.

Definitions are scikit-learn's (1.9: ``accuracy_score``, ``balanced_accuracy_score``, ``f1_score``,
``precision_score``, ``recall_score``, ``roc_auc_score``, ``average_precision_score``), written over draw counts so that
a thousand resamples cost one sweep; the tests compare every figure with scikit-learn's, resampled ones included.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alora.errors import DataError
from alora.evaluation.records import FIGURES, Estimate, Metrics

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


CALIBRATION_BINS = 15
_ECE = FIGURES.index("ece")


def compute_metrics(
    positive_N: Flags, probability_N: Floats, threshold: float, resamples: int = 1000, seed: int = 0
) -> Metrics:
    """All of :data:`FIGURES` for rows that are of the positive label or not, and their calibrated probabilities.

    ``recall_at_1_fpr`` is the highest recall of any threshold whose false positive rate is at most 1 %; ``ece`` is the
    expected calibration error of the positive probability in 15 equal bins (Naeini et al. 2015). Intervals are
    percentile intervals; that of ``ece`` is a basic bootstrap interval, because drawing rows twice makes every bin look
    worse than it is; with ``resamples=0`` they are None.
    """
    positive_N = np.asarray(positive_N, dtype=bool)
    probability_N = np.asarray(probability_N, dtype=np.float64)
    rows = len(positive_N)
    if rows == 0:
        raise DataError("there are no rows to evaluate: give data.test a file with rows labelled for this policy")
    figures = estimates(*bootstrap(positive_N, probability_N, threshold, resamples, seed))
    return Metrics(rows, int(positive_N.sum()), threshold, figures)


def bootstrap(
    positive_N: Flags, probability_N: Floats, threshold: float, resamples: int, seed: int
) -> tuple[Floats, Floats]:
    """``point_F`` and ``samples_SF``: the figures of the rows themselves, and of the resamples."""
    rows = len(positive_N)
    chunks = [
        figure_samples(positive_N, probability_N, threshold, counts) for counts in draw_counts(rows, resamples, seed)
    ]
    point_1F = figure_samples(positive_N, probability_N, threshold, np.ones((1, rows)))
    return point_1F[0], np.vstack([np.empty((0, len(FIGURES))), *chunks])


def estimates(point_F: Floats, samples_SF: Floats) -> dict[str, Estimate]:
    """Figures with their intervals, as :func:`compute_metrics` says; None where a figure is not defined."""
    low_F, high_F = interval(samples_SF) if len(samples_SF) else np.full((2, len(FIGURES)), np.nan)
    if len(samples_SF):
        low_F[_ECE], high_F[_ECE] = _turned(point_F[_ECE], low_F[_ECE], high_F[_ECE])
    columns = (point_F, low_F, high_F)
    return {
        name: Estimate(*(None if math.isnan(column[index]) else float(column[index]) for column in columns))
        for index, name in enumerate(FIGURES)
    }


def _turned(value: float, low: float, high: float) -> tuple[float, float]:
    """The basic bootstrap interval (Davison and Hinkley 1997, 5.2) of a figure from 0 to 1; it contains the value."""
    return max(0.0, min(value, 2 * value - high)), min(1.0, max(value, 2 * value - low))


def interval(samples_SF: Floats) -> Floats:
    """Lower and upper bound per figure; resamples that leave a figure undefined do not count."""
    bounds_2F = np.full((2, samples_SF.shape[1]), np.nan)
    for column, values_S in enumerate(samples_SF.T):
        defined = values_S[~np.isnan(values_S)]
        if defined.size:
            bounds_2F[:, column] = np.percentile(defined, COVERAGE)
    return bounds_2F


def figure_samples(positive_N: Flags, probability_N: Floats, threshold: float, counts_SN: Floats) -> Floats:
    """``figures_SF`` of resamples, in the order of :data:`FIGURES`; NaN where one is not defined."""
    curve = sweep(positive_N, probability_N, counts_SN)
    total_P, total_N = curve.positives_S1[:, 0], curve.negatives_S1[:, 0]
    column = int((curve.values_K >= threshold).sum())
    hits, alarms = curve.hits_SK1[:, column], curve.alarms_SK1[:, column]
    recall, specificity = ratio(hits, total_P), ratio(total_N - alarms, total_N)

    precision_SK = ratio(curve.hits_SK1[:, 1:], curve.hits_SK1[:, 1:] + curve.alarms_SK1[:, 1:], empty=0.0)
    auprc = ratio((np.diff(curve.hits_SK1) * precision_SK).sum(axis=1), total_P)
    rate_SK1 = ratio(curve.alarms_SK1, curve.negatives_S1)
    recall_SK1 = ratio(curve.hits_SK1, curve.positives_S1)
    at_1, at_5 = (
        np.where(np.isnan(rate_SK1[:, 0]), np.nan, np.where(rate_SK1 <= limit, recall_SK1, 0.0).max(axis=1))
        for limit in (0.01, 0.05)
    )
    columns = (
        (hits + total_N - alarms) / (total_P + total_N),
        (recall + specificity) / 2,
        ratio(2 * hits, hits + alarms + total_P, empty=0.0),
        ratio(hits, hits + alarms, empty=0.0),
        recall,
        auroc(curve),
        auprc,
        at_1,
        at_5,
        _calibration_error(positive_N, probability_N, counts_SN),
    )
    return np.stack(columns, axis=1)


def _calibration_error(positive_N: Flags, probability_N: Floats, counts_SN: Floats) -> Floats:
    """``Σ_bins |Σ (label - probability)| / rows`` per resample: the row shares cancel against the bin means."""
    bins_N = np.minimum((probability_N * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps_NB = np.eye(CALIBRATION_BINS)[bins_N] * (positive_N - probability_N)[:, None]
    return np.abs(counts_SN @ gaps_NB).sum(axis=1) / counts_SN.sum(axis=1)


def roc_points(positive_N: Flags, score_N: Floats) -> tuple[Floats, Floats]:
    """False positive rate and recall at every threshold, from the strictest on; rows of one score move together."""
    positive_N = np.asarray(positive_N, dtype=bool)
    curve = sweep(positive_N, np.asarray(score_N, dtype=np.float64), np.ones((1, len(positive_N))))
    hits, alarms = curve.hits_SK1[0], curve.alarms_SK1[0]
    return alarms / max(alarms[-1], 1.0), hits / max(hits[-1], 1.0)


def reliability_points(positive_N: Flags, probability_N: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean probability, share of positive rows, and number of rows, of every bin that holds some."""
    probability_N = np.asarray(probability_N, dtype=np.float64)
    bins_N = np.minimum((probability_N * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    rows_B = np.bincount(bins_N, minlength=CALIBRATION_BINS)
    used = rows_B > 0
    meant = np.bincount(bins_N, probability_N, CALIBRATION_BINS)[used] / rows_B[used]
    happened = np.bincount(bins_N, np.asarray(positive_N, dtype=np.float64), CALIBRATION_BINS)[used] / rows_B[used]
    return meant, happened, rows_B[used]
