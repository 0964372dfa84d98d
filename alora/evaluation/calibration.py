"""Temperature, bias and threshold of one adapter, fitted on rows that it was not trained on.

For F1 and cost the threshold follows from the calibrated probabilities, not from counting rows at every threshold: of
few rows the best count is mostly luck. A rate (``fpr``, ``recall``) is counted, for it is a promise about rows.

The log-odds of a label are a line over a score (Platt 1999), with a prior in place of his smoothed targets: the slope
is log-normal around :data:`SLOPE` standard deviations of the score, the intercept is normal around 0. So few rows, or
rows that are all told apart, do not call for certainty. The prior's strength was chosen on adapters of eight policies,
each with random 36, 100 and 240 rows.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit, logsumexp, softmax

from alora.config.needs import of_another_target
from alora.config.schema import EvaluationSettings
from alora.errors import ConfigError, DataError
from alora.evaluation.metrics import COVERAGE, Flags, Floats, Sweep, draw_counts, ratio, sweep
from alora.verdict import MOST_BIAS, TENTHS, OperatingPoint, tenth

SLOPE = 1.5  # in units of one over the score's standard deviation
SLOPE_WEIGHT, BIAS_WEIGHT = 1.0, 3.0  # precisions of the prior: of the logarithm of the slope, and of the intercept
_STEPS, _CLOSE = 50, 1e-9
_LEAST = 1e-9  # of a probability, whose log-odds are then finite
# What a threshold can be chosen for, with its default rate; "none" is what an uncalibrated adapter has.
TARGETS: Mapping[str, float | None] = {"f1": None, "fpr": 0.01, "recall": 0.95, "cost": None}


def spread(score_N: Floats) -> float:
    """Standard deviation of a score, and 1e-3 where it has none to speak of."""
    return max(float(np.std(score_N)), 1e-3)


def fit_lines(score_N: Floats, positive_N: Floats, counts_SN: Floats) -> tuple[Floats, Floats]:
    """``slope_S`` and ``bias_S`` of ``P(positive) = expit(slope * score + bias)``, per resample by draw counts.

    Newton's method with the Gauss-Newton matrix, in the logarithm of the slope.
    """
    centre = np.log(SLOPE / spread(score_N))
    log_slope_S, bias_S = np.full(len(counts_SN), centre), np.zeros(len(counts_SN))
    for _ in range(_STEPS):
        scaled_SN = np.exp(log_slope_S)[:, None] * score_N
        chance_SN = expit(scaled_SN + bias_S[:, None])
        missed_SN = counts_SN * (positive_N - chance_SN)
        weight_SN = counts_SN * chance_SN * (1 - chance_SN)
        down_S = (missed_SN * scaled_SN).sum(1) - SLOPE_WEIGHT * (log_slope_S - centre)
        across_S = missed_SN.sum(1) - BIAS_WEIGHT * bias_S
        a_S = (weight_SN * scaled_SN**2).sum(1) + SLOPE_WEIGHT
        b_S = (weight_SN * scaled_SN).sum(1)
        c_S = weight_SN.sum(1) + BIAS_WEIGHT
        determinant_S = a_S * c_S - b_S**2
        step_S = np.clip((c_S * down_S - b_S * across_S) / determinant_S, -0.5, 0.5)
        shift_S = np.clip((a_S * across_S - b_S * down_S) / determinant_S, -2.0, 2.0)
        log_slope_S, bias_S = log_slope_S + step_S, bias_S + shift_S
        if max(np.abs(step_S).max(initial=0), np.abs(shift_S).max(initial=0)) < _CLOSE:
            break
    return np.exp(log_slope_S), bias_S


def positive_probability(logits_NL: Floats, temperature: float = 1.0, bias: float = 0.0) -> Floats:
    """``alora.verdict.label_probabilities(...)[0]`` for many rows at once."""
    return all_probabilities(logits_NL, temperature, bias)[:, 0]


def all_probabilities(logits_NL: Floats, temperature: float = 1.0, bias: float = 0.0) -> Floats:
    """:func:`positive_probability` for every label."""
    if not np.isfinite(logits_NL).all():
        bad = int((~np.isfinite(logits_NL)).any(axis=1).sum())
        raise DataError(f"label logits of {bad} of {len(logits_NL)} rows are not finite; try base.dtype=float32")
    # Differences first, as a verdict does: bfloat16 logits have many ties, which dividing first would break.
    values_NL = np.asarray(logits_NL, dtype=np.float64)
    scaled_NL = (values_NL - values_NL.max(axis=1, keepdims=True, initial=-np.inf)) / temperature
    scaled_NL[:, :1] += bias
    return softmax(scaled_NL, axis=1)


def verdicts(probability_NL: Floats, threshold: float) -> NDArray[np.int64]:
    """The label ids that :func:`alora.verdict.make_verdict` gives, for many rows at once."""
    others_N = 1 + probability_NL[:, 1:].argmax(axis=1)
    return np.where(probability_NL[:, 0] >= threshold, 0, others_N)


def fit_rules(
    probability_NL: Floats, label_ids_N: NDArray[np.int64], labels: Sequence[str], settings: EvaluationSettings
) -> dict[str, float]:
    """For three labels or more, a threshold on each one's own probability, chosen as the verdict's is."""
    plain = replace(settings, bootstrap=0)
    return {
        label: choose_threshold(label_ids_N == index, probability_NL[:, index], plain)[0]
        for index, label in enumerate(labels if len(labels) > 2 else ())
    }


def fit_calibration(logits_NL: Floats, label_ids_N: NDArray[np.int64]) -> tuple[float, float]:
    """The temperature (Guo et al. 2017) and the positive label's bias that make the labels likeliest.

    Under the same prior as :func:`fit_lines`, so both stay finite where the rows are few or all told apart.
    """
    logits_NL = np.asarray(logits_NL, dtype=np.float64)
    margin_N = logits_NL[:, 0] - np.asarray(logsumexp(logits_NL[:, 1:], axis=1))
    centre = math.log(SLOPE / spread(margin_N))

    def loss(fitted: Any) -> float:
        scaled_NL = logits_NL * math.exp(fitted[0])
        scaled_NL[:, 0] += fitted[1]
        likely = float(log_softmax(scaled_NL, axis=1)[np.arange(len(label_ids_N)), label_ids_N].sum())
        return (SLOPE_WEIGHT * (fitted[0] - centre) ** 2 + BIAS_WEIGHT * fitted[1] ** 2) / 2 - likely

    found: Any = minimize(loss, (centre, 0.0), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
    return math.exp(-found.x[0]), float(np.clip(found.x[1], -MOST_BIAS, MOST_BIAS))


def choose_threshold(
    positive_N: Flags, probability_N: Floats, settings: EvaluationSettings, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """The threshold for ``settings.target`` with the bounds of its bootstrap interval; None without resamples.

    ``f1``: the highest F1 to be expected. ``cost``: the lowest sum of what false positives and false negatives cost, as
    it is to be expected. ``fpr``: the highest recall whose false positive rate is at most the :func:`target_value`.
    ``recall``: the fewest false positives whose recall is at least that. Of the latter two the highest threshold among
    equals; it lies midway between two rows' probabilities.
    """
    rate = target_value(settings)
    positive_N = np.asarray(positive_N, dtype=bool)
    if positive_N.all() or not positive_N.any():
        raise DataError(
            f"the {len(positive_N)} rows to calibrate by are all of one class, so no threshold can be chosen; "
            "add rows of the other label"
        )

    def pick(counts_SN: Floats) -> Floats:
        of_both = (counts_SN @ positive_N > 0) & (
            counts_SN @ ~positive_N > 0
        )  # a resample of one class chooses nothing
        counts_SN = counts_SN[of_both]
        if rate is None:
            return _expected(positive_N, probability_N, counts_SN, costs_of(settings))
        curve = sweep(positive_N, probability_N, counts_SN)
        return _thresholds(curve.values_K)[_best_column(curve, target_of(settings), rate)]

    chosen = float(pick(np.ones((1, len(positive_N))))[0])
    resampled = [pick(counts) for counts in draw_counts(len(positive_N), settings.bootstrap, seed)]
    if not any(part.size for part in resampled):
        return chosen, None, None
    low, high = np.percentile(np.concatenate(resampled), COVERAGE)
    return chosen, min(float(low), chosen), max(float(high), chosen)


def _expected(positive_N: Flags, probability_N: Floats, counts_SN: Floats, costs: tuple[float, float] | None) -> Floats:
    """Per resample the threshold with the lowest expected cost, or with the highest expected F1.

    The resample's own line (:func:`fit_lines`) says how likely a violation is. A false alarm is worth its cost from
    ``alarm / (alarm + miss)`` on. F1 is highest at half of itself (Lipton et al. 2014).
    """
    score_N = logit(np.clip(probability_N, _LEAST, 1 - _LEAST))
    slope_S, bias_S = fit_lines(score_N, positive_N.astype(np.float64), counts_SN)
    if costs is not None:
        turn_S = np.full(len(counts_SN), costs[0] / sum(costs))
    else:
        order = np.argsort(-score_N)
        chance_SN = expit(slope_S[:, None] * score_N[order] + bias_S[:, None]) * counts_SN[:, order]
        rows_SN = np.cumsum(counts_SN[:, order], axis=1)
        turn_S = (np.cumsum(chance_SN, axis=1) / (rows_SN + chance_SN.sum(1, keepdims=True))).max(axis=1)
    return expit((logit(turn_S) - bias_S) / slope_S)


def target_of(settings: EvaluationSettings) -> str:
    """What the threshold is chosen for: F1 by default."""
    return "f1" if settings.target is None else settings.target


def target_value(settings: EvaluationSettings) -> float | None:
    """The rate that the threshold must meet: the one given, else the target's default; None for ``f1`` and ``cost``."""
    default = TARGETS[target_of(settings)]
    return default if settings.target_value is None else settings.target_value


def _best_column(curve: Sweep, target: str, rate: float) -> NDArray[np.int64]:
    """Per resample the column of the sweep that serves the rate best; the first (highest threshold) among equals."""
    if target == "fpr":
        allowed = ratio(curve.alarms_SK1, curve.negatives_S1, empty=0.0) <= rate
        return np.argmax(np.where(allowed, curve.hits_SK1, -1.0), axis=1)
    return np.argmax(ratio(curve.hits_SK1, curve.positives_S1, empty=1.0) >= rate, axis=1)


def _thresholds(values_K: Floats) -> Floats:
    """The threshold of each column of a sweep: above every value, between neighbours, below every value."""
    never = max((values_K[0] + 1) / 2, math.nextafter(values_K[0], math.inf))
    between = np.minimum((values_K[1:] + values_K[:-1]) / 2, values_K[:-1])
    between = np.where(between > values_K[1:], between, values_K[:-1])  # neighbours one ulp apart
    return np.r_[never, between, values_K[-1] / 2]


def costs_of(settings: EvaluationSettings) -> tuple[float, float] | None:
    """What a false positive and a false negative cost, where the target is cost; 1 by default."""
    if target_of(settings) != "cost":
        return None
    return settings.false_positive_cost or 1.0, settings.false_negative_cost or 1.0


def fit_operating_point(
    logits_NL: Floats, label_ids_N: NDArray[np.int64], settings: EvaluationSettings, seed: int = 0
) -> OperatingPoint:
    """Fit temperature and bias, then the threshold; label 0 is the positive one.

    Raises:
        ConfigError: see :func:`choose_threshold`.
        DataError: no rows, one class only, or logits that are not finite.
    """
    if len(logits_NL) == 0:
        raise DataError("there are no rows to calibrate on; give data.validation or more training rows")
    positive_N = np.asarray(label_ids_N) == 0
    positive_probability(logits_NL)  # refuses what is not finite before anything is fitted to it
    temperature, bias = fit_calibration(logits_NL, label_ids_N)
    probability_N = positive_probability(logits_NL, temperature, bias)
    threshold, low, high = choose_threshold(positive_N, probability_N, settings, seed)
    seen = Counter(map(tenth, probability_N.tolist()))
    return OperatingPoint(
        temperature=temperature,
        bias=bias,
        threshold=threshold,
        threshold_low=low,
        threshold_high=high,
        target=target_of(settings),
        target_value=target_value(settings),
        rows=len(positive_N),
        positives=int(positive_N.sum()),
        costs=costs_of(settings),
        histogram=tuple(seen[number] for number in range(TENTHS)),
    )


def refit_settings(before: OperatingPoint, given: EvaluationSettings, said: Collection[str] = ()) -> EvaluationSettings:
    """The settings to fit a point again: those ``given``, and where none are, those that ``before`` was fitted for.

    Another target has its own defaults, and so has a setting that is ``said`` to be null. ConfigError where a setting
    is not the target's.
    """
    target, fitted = given.target or before.target, dict[str, float | None]()
    if target == before.target != "none":
        alarm, miss = before.costs or (None, None)
        fitted = {"target_value": before.target_value, "false_positive_cost": alarm, "false_negative_cost": miss}
    kept = {
        name: value
        for name, value in fitted.items()
        if getattr(given, name) is None and f"evaluation.{name}" not in said
    }
    settings = replace(given, target=None if target == "none" else target, **kept)
    for problem in of_another_target(settings, target_of(settings)):
        raise ConfigError(problem)
    return settings
