"""Whether two methods differ on the same rows: the difference of their AUROC, by bootstrap and by DeLong's test.

A method may have several runs (seeds). Its AUROC is then the mean of theirs, and rows are resampled: the tests ask
whether other rows would give the same result for these runs. The spread over seeds is shown next to them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from alora.evaluation.metrics import COVERAGE, Flags, Floats, auroc, draw_counts, ratio, sweep
from alora.evaluation.records import Estimate


@dataclass(frozen=True)
class Difference:
    """AUROC of the first method minus that of the second. ``samples_S`` are the bootstrap's differences.
    ``p_bootstrap`` and ``p_delong`` are two-sided: how often chance alone shows a difference like this."""

    value: float
    low: float
    high: float
    p_bootstrap: float
    p_delong: float
    samples_S: Floats


def paired_auroc(
    positive_N: Flags, first_KN: Floats, second_JN: Floats, resamples: int = 1000, seed: int = 0
) -> Difference:
    """Compare K runs of one method with J runs of another on the same N rows; scores are higher for positives, and both
    classes are there."""
    positive_N = np.asarray(positive_N, dtype=bool)
    first_KN, second_JN = (np.atleast_2d(np.asarray(x, dtype=np.float64)) for x in (first_KN, second_JN))
    value = mean_auroc(positive_N, first_KN) - mean_auroc(positive_N, second_JN)
    chunks = [
        _auroc_samples(positive_N, first_KN, counts) - _auroc_samples(positive_N, second_JN, counts)
        for counts in draw_counts(len(positive_N), resamples, seed)
    ]
    samples_S = np.concatenate(chunks) if chunks else np.empty(0)
    samples_S = samples_S[~np.isnan(samples_S)]  # a resample of one class has no AUROC
    low, high = np.percentile(samples_S, COVERAGE) if samples_S.size else (math.nan, math.nan)
    return Difference(
        value=value,
        low=float(low),
        high=float(high),
        p_bootstrap=two_sided(samples_S),
        p_delong=_delong(positive_N, first_KN, second_JN),
        samples_S=samples_S,
    )


def worth_samples(positive_N: Flags, fired_N: Flags, costs: tuple[float, float] | None, counts_SN: Floats) -> Floats:
    """What verdicts are worth per resample: their F1, or with costs (of a false alarm, of a miss) minus the mean cost
    of a row where the two together cost 2, so that equal costs give minus the share of mistakes."""
    hits_S, alarms_S = counts_SN @ (positive_N & fired_N), counts_SN @ (~positive_N & fired_N)
    positives_S = counts_SN @ positive_N
    if costs is None:
        return ratio(2 * hits_S, hits_S + alarms_S + positives_S, empty=0.0)
    lost_S = costs[0] * alarms_S + costs[1] * (positives_S - hits_S)
    return -2 * lost_S / sum(costs) / counts_SN.sum(axis=1)


def lead_in_worth(
    positive_N: Flags,
    first_N: Flags,
    second_N: Flags,
    costs: tuple[float, float] | None,
    resamples: int,
    seed: int,
) -> Estimate:
    """What the first method's verdicts are worth more than the second's on the same rows (:func:`worth_samples`)."""

    def gaps(counts_SN: Floats) -> Floats:
        first_S, second_S = (worth_samples(positive_N, fired_N, costs, counts_SN) for fired_N in (first_N, second_N))
        return first_S - second_S

    value = float(gaps(np.ones((1, len(positive_N))))[0])
    samples = [gaps(counts) for counts in draw_counts(len(positive_N), resamples, seed)]
    if not samples:
        return Estimate(value)
    low, high = np.percentile(np.concatenate(samples), COVERAGE)
    return Estimate(value, float(low), float(high))


def mean_auroc(positive_N: Flags, scores_KN: Floats) -> float:
    return float(_auroc_samples(positive_N, scores_KN, np.ones((1, len(positive_N))))[0])


def two_sided(samples_S: Floats) -> float:
    """Twice the share of resampled differences on the far side of zero, never below what S resamples can resolve."""
    if not samples_S.size:
        return math.nan
    beyond = min(int((samples_S <= 0).sum()), int((samples_S >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (samples_S.size + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values of several tests, adjusted so that any false alarm among them is as likely as they say (Holm 1979); NaN,
    for a test that could not be made, stays and counts for no other."""
    order = sorted((n for n, p in enumerate(p_values) if not math.isnan(p)), key=p_values.__getitem__)
    adjusted, highest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _auroc_samples(positive_N: Flags, scores_KN: Floats, counts_SN: Floats) -> Floats:
    """Per resample the mean AUROC of the runs; NaN where a resample is of one class."""
    return np.mean([auroc(sweep(positive_N, scores_N, counts_SN)) for scores_N in scores_KN], axis=0)


def _delong(positive_N: Flags, first_KN: Floats, second_JN: Floats) -> float:
    """DeLong et al. 1988, by midranks (Sun and Xu 2014). Placements are linear in the runs, so a mean AUROC has the
    mean of its runs' placements."""
    ours, theirs = _placements(positive_N, first_KN), _placements(positive_N, second_JN)
    gaps = [first - second for first, second in zip(ours, theirs, strict=True)]
    if min(map(len, gaps)) < 2:
        return math.nan
    difference = float(gaps[0].mean())
    variance = sum(float(gap.var(ddof=1)) / len(gap) for gap in gaps)
    if variance <= 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * norm.sf(abs(difference) / math.sqrt(variance)))


def _placements(positive_N: Flags, scores_KN: Floats) -> tuple[Floats, Floats]:
    """Per positive the share of negatives below it, and per negative the share of positives above, over the runs."""
    above, below = [], []
    for scores_N in scores_KN:
        hits, misses = scores_N[positive_N], scores_N[~positive_N]
        ranks = rankdata(np.r_[hits, misses])
        above.append((ranks[: len(hits)] - rankdata(hits)) / len(misses))
        below.append(1 - (ranks[len(hits) :] - rankdata(misses)) / len(hits))
    return np.mean(above, axis=0), np.mean(below, axis=0)
