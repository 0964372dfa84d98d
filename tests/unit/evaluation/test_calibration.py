"""Temperature and threshold do what they say on validation rows; the interval is a bootstrap's."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit, softmax

from alora.config.schema import EvaluationSettings
from alora.errors import ConfigError, DataError
from alora.evaluation.calibration import (
    BIAS_WEIGHT,
    SLOPE,
    SLOPE_WEIGHT,
    OperatingPoint,
    choose_threshold,
    fit_calibration,
    fit_lines,
    fit_operating_point,
    fit_rules,
    positive_probability,
    refit_settings,
    verdicts,
)
from alora.evaluation.metrics import draw_counts
from alora.received import decode
from alora.verdict import label_probabilities


def validation(seed: int = 0, size: int = 4000, overconfidence: float = 1.0):
    """Rows whose labels follow the logits' own probabilities, with the logits then scaled."""
    rng = np.random.default_rng(seed)
    margin = rng.normal(0, 2, size)
    label_ids = (rng.random(size) >= expit(margin)).astype(np.int64)
    return np.stack([margin / 2, -margin / 2], axis=1) * overconfidence, label_ids


def test_each_of_three_labels_has_a_rule_of_its_own_probability():
    rng = np.random.default_rng(1)
    label_ids = rng.integers(0, 3, 600)
    logits = rng.normal(size=(600, 3))
    logits[np.arange(600), label_ids] += np.array([2.0, 1.0, 0.3])[label_ids]
    probability_NL = softmax(logits, axis=1)
    rules = fit_rules(probability_NL, label_ids, ("a", "b", "c"), EvaluationSettings(bootstrap=20))

    def f1(label: int, threshold: float) -> float:
        fired, own = probability_NL[:, label] >= threshold, label_ids == label
        return 2 * (fired & own).sum() / (fired.sum() + own.sum())

    for label, name in enumerate("abc"):
        best = max(f1(label, value) for value in probability_NL[:, label])
        assert best - 0.04 < f1(label, rules[name]) <= best
    assert fit_rules(probability_NL[:, :2], label_ids % 2, ("a", "b"), EvaluationSettings()) == {}


@pytest.mark.parametrize("overconfidence", [0.5, 1.0, 3.0])
def test_temperature_undoes_overconfidence(overconfidence):
    logits, label_ids = validation(overconfidence=overconfidence)
    assert fit_calibration(logits, label_ids)[0] == pytest.approx(overconfidence, rel=0.08)


def test_rows_of_one_margin_have_one_probability():
    """bfloat16 logits lie on a coarse grid: the temperature's rounding must not put an order into ties."""
    tops = np.arange(1, 200) * 0.125
    logits_NL = np.stack((tops, tops - 0.125), axis=1)
    for temperature in (0.37, 2.2090224959272, 5.06):
        chance_N = positive_probability(logits_NL, temperature)
        assert len(set(chance_N.tolist())) == 1
        assert chance_N[0] == pytest.approx(label_probabilities(logits_NL[0].tolist(), temperature)[0], abs=1e-15)
        assert len(set(softmax(logits_NL / temperature, axis=1)[:, 0].tolist())) > 1  # negative control
    assert positive_probability(np.empty((0, 2))).shape == (0,)


@pytest.mark.parametrize("labels", [2, 3, 4])
def test_rows_all_right_do_not_call_for_certainty(labels):
    label_ids = np.repeat(np.arange(labels), 10)
    logits = 4.0 * np.eye(labels)[label_ids]
    chance_N = positive_probability(logits, *fit_calibration(logits, label_ids))
    assert 0.9 < chance_N[0] < 0.999
    assert 0.001 < chance_N[-1] < 0.1


def test_the_bias_undoes_a_shift_that_no_temperature_does():
    logits, label_ids = validation(7)
    logits[:, 0] += 3.0
    temperature, bias = fit_calibration(logits, label_ids)
    assert (temperature, bias) == (pytest.approx(1, rel=0.1), pytest.approx(-3, abs=0.3))
    share = (label_ids == 0).mean()
    assert positive_probability(logits, temperature, bias).mean() == pytest.approx(share, abs=0.01)
    assert positive_probability(logits, temperature).mean() > share + 0.2  # negative control


def test_few_rows_and_rows_without_a_signal_stay_within_reason():
    """One validation split of 15 rows once left a temperature of 20 or 0.2."""
    for seed in range(20):
        logits, label_ids = validation(seed, 15)
        temperature, bias = fit_calibration(logits, label_ids)
        assert 0.3 < temperature < 5
        assert abs(bias) < 1.5
    assert fit_calibration(np.zeros((9, 2)), np.arange(9) % 2)[1] == pytest.approx(0, abs=0.2)


def test_lines_are_those_of_a_minimiser():
    """Newton's steps over many resamples at once end where scipy's ends for each alone."""
    logits, label_ids = validation(2, 40)
    score_N, positive_N = logits[:, 0] - logits[:, 1], (label_ids == 0).astype(float)
    counts_SN = next(iter(draw_counts(40, 20, seed=0)))
    slope_S, bias_S = fit_lines(score_N, positive_N, counts_SN)
    centre = math.log(SLOPE / score_N.std())
    for counts, slope, bias in zip(counts_SN, slope_S, bias_S, strict=True):

        def loss(line, counts=counts):
            log_odds = math.exp(line[0]) * score_N + line[1]
            likely = positive_N * log_expit(log_odds) + (1 - positive_N) * log_expit(-log_odds)
            return (SLOPE_WEIGHT * (line[0] - centre) ** 2 + BIAS_WEIGHT * line[1] ** 2) / 2 - (counts * likely).sum()

        found = minimize(loss, (0.0, 0.0), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
        assert (math.log(slope), bias) == pytest.approx(tuple(found), abs=1e-4)


def test_agrees_with_the_verdict():
    logits = np.random.default_rng(2).normal(0, 5, (20, 3))
    for bias in (0.0, -2.5):
        want = [label_probabilities(list(row), 1.7, bias)[0] for row in logits]
        assert positive_probability(logits, 1.7, bias) == pytest.approx(want, abs=1e-14)
    even, thresholds = np.array([[0.5, 0.25, 0.25]]), (0.5, np.nextafter(0.5, 1))
    assert [int(verdicts(even, threshold)[0]) for threshold in thresholds] == [0, 1], "at the threshold it is positive"


def rates(positive, probability, threshold):
    fired = probability >= threshold
    return fired[positive].mean(), fired[~positive].mean()


def best_by_hand(positive, probability, score):
    """Highest threshold among those of the best score, by trying each: thresholds lie at rows, or above all."""
    tries = [*sorted(set(probability), reverse=True)]
    fired = [np.zeros(len(positive), bool)] + [probability >= t for t in tries]
    scores = [score(positive, f) for f in fired]
    return fired[int(np.argmax(scores))]


def f1(positive, fired):
    return 2 * (positive & fired).sum() / max(positive.sum() + fired.sum(), 1)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("levels", [None, 10])
def test_thresholds_equal_exhaustive_search(seed, levels):
    rng = np.random.default_rng(seed)
    positive = rng.random(60) < 0.5
    probability = np.clip(rng.normal(0.4 + 0.25 * positive, 0.2), 0, 1)
    if levels:
        probability = np.round(probability * levels) / levels
    scores = {
        "fpr": lambda p, f: (p & f).sum() if (~p & f).sum() <= 0.1 * (~p).sum() else -1,
        "recall": lambda p, f: float((p & f).sum() >= 0.8 * p.sum()),
    }
    for target, score in scores.items():
        value = {"fpr": 0.1, "recall": 0.8}[target]
        settings = EvaluationSettings(target=target, target_value=value, bootstrap=0)
        threshold, low, high = choose_threshold(positive, probability, settings)
        assert low is high is None
        assert ((probability >= threshold) == best_by_hand(positive, probability, score)).all(), target


@pytest.mark.parametrize("overconfidence", [0.3, 3.0])
def test_the_point_holds_its_rate_at_its_own_temperature(overconfidence):
    """A threshold of raw probabilities would be wrong wherever the temperature is not 1."""
    logits, label_ids = validation(3, 500, overconfidence)
    settings = EvaluationSettings(target="recall", target_value=0.9, bootstrap=20)
    point = fit_operating_point(logits, label_ids, settings)
    chance_N = positive_probability(logits, point.temperature, point.bias)
    recall, alarms = rates(label_ids == 0, chance_N, point.threshold)
    assert 0.9 <= recall < 0.91
    assert rates(label_ids == 0, positive_probability(logits), point.threshold) != (recall, alarms)  # negative control


@pytest.mark.parametrize("target", ["f1", "cost"])
def test_a_threshold_is_steadier_than_the_best_count_and_no_worse(target):
    """Of 40 rows the best count is mostly luck; measured on many rows of the same kind."""
    many, ids = validation(99, 20_000)
    chance, truth = positive_probability(many), ids == 0
    score = f1 if target == "f1" else (lambda p, f: float((p == f).mean()))
    fitted, counted = [], []
    for seed in range(30):
        logits, label_ids = validation(seed, 40)
        positive, probability = label_ids == 0, positive_probability(logits)
        threshold = choose_threshold(positive, probability, EvaluationSettings(target=target, bootstrap=0))[0]
        fired = best_by_hand(positive, probability, score)
        fitted.append(score(truth, chance >= threshold))
        counted.append(score(truth, chance >= (probability[fired].min() if fired.any() else 2)))
    assert np.mean(fitted) > np.mean(counted) + 0.005
    assert np.std(fitted) < np.std(counted)


@pytest.mark.parametrize(("alarm", "miss"), [(1.0, 1.0), (1.0, 10.0), (5.0, 1.0)])
def test_a_cost_is_lowest_where_it_is_expected_to_be(alarm, miss):
    """A row is flagged when ``chance * miss`` is more than ``(1 - chance) * alarm``."""
    logits, label_ids = validation(3, 4000)
    settings = EvaluationSettings(target="cost", false_positive_cost=alarm, false_negative_cost=miss, bootstrap=50)
    threshold, low, high = choose_threshold(label_ids == 0, positive_probability(logits), settings)
    assert threshold == pytest.approx(alarm / (alarm + miss), abs=0.03)
    assert low < threshold < high


def test_a_rate_that_no_threshold_holds_never_fires():
    positive = np.array([True, False, True, False])
    probability = np.array([0.2, 1.0, 0.3, 0.9])
    threshold, _, _ = choose_threshold(
        positive, probability, EvaluationSettings(target="fpr", target_value=0.01, bootstrap=0)
    )
    assert threshold > 1.0
    assert rates(positive, probability, threshold) == (0, 0)


def test_operating_point_is_seeded_and_reads_back():
    logits, label_ids = validation(5, 200)
    settings = EvaluationSettings(bootstrap=100)
    point = fit_operating_point(logits, label_ids, settings, seed=1)
    assert point == fit_operating_point(logits, label_ids, settings, seed=1)
    other = fit_operating_point(logits, label_ids, settings, seed=2)
    assert other.threshold == point.threshold
    assert (other.threshold_low, other.threshold_high) != (point.threshold_low, point.threshold_high)
    assert decode(OperatingPoint, point.as_dict()) == point
    assert point.temperature != 1
    assert point.threshold_low <= point.threshold <= point.threshold_high
    assert (point.rows, point.positives) == (200, int((label_ids == 0).sum()))
    probability_N = positive_probability(logits, point.temperature, point.bias)
    assert list(point.histogram) == np.histogram(probability_N, bins=10, range=(0, 1))[0].tolist()
    assert OperatingPoint().threshold == 0.5


def test_what_is_refused():
    logits, label_ids = validation(6, 50)
    with pytest.raises(DataError, match="one class"):
        fit_operating_point(logits, np.zeros(50, np.int64), EvaluationSettings())
    with pytest.raises(DataError, match="no rows to calibrate"):
        fit_operating_point(logits[:0], label_ids[:0], EvaluationSettings())
    broken = logits.copy()
    broken[3, 1] = math.nan
    with pytest.raises(DataError, match="1 of 50 rows are not finite"):
        fit_operating_point(broken, label_ids, EvaluationSettings())


def test_a_dearer_miss_lowers_the_threshold_and_only_the_ratio_counts():
    logits, label_ids = validation(3, 500)

    def fitted(alarm, miss):
        settings = EvaluationSettings(target="cost", false_positive_cost=alarm, false_negative_cost=miss, bootstrap=50)
        return fit_operating_point(logits, label_ids, settings)

    cheap, even, dear = fitted(10, 1), fitted(1, 1), fitted(1, 10)
    assert dear.threshold < even.threshold < cheap.threshold
    assert fitted(3, 30).threshold == dear.threshold
    assert dear.costs == (1, 10)
    assert (fitted(10, None).costs, fitted(None, 10).costs) == ((10, 1), (1, 10)), "1 where none is given"
    assert decode(OperatingPoint, json.loads(json.dumps(dear.as_dict()))) == dear


@pytest.mark.parametrize("name", ["target_value", "false_positive_cost", "false_negative_cost"])
@pytest.mark.parametrize("before", ["none", "f1"])
def test_a_setting_of_another_target_is_refused(name, before):
    with pytest.raises(ConfigError, match=rf"evaluation\.{name}=0\.5 has no effect on target=f1; add"):
        refit_settings(OperatingPoint(target=before), EvaluationSettings(**{name: 0.5}))


@pytest.mark.parametrize(
    ("before", "given", "wanted"),
    [
        (("fpr", 0.01, None), {}, ("fpr", 0.01, None, None)),
        (("fpr", 0.01, None), {"target": "f1"}, ("f1", None, None, None)),
        (("fpr", 0.01, None), {"target_value": 0.05}, ("fpr", 0.05, None, None)),
        (("fpr", 0.05, None), {"target": "recall"}, ("recall", None, None, None)),
        (("cost", None, (1.0, 10.0)), {"false_negative_cost": 20.0}, ("cost", None, 1.0, 20.0)),
        (("cost", None, (1.0, 10.0)), {}, ("cost", None, 1.0, 10.0)),
        (("f1", None, None), {"target": "cost", "false_negative_cost": 5.0}, ("cost", None, None, 5.0)),
        (("none", None, None), {}, (None, None, None, None)),
    ],
)
def test_recalibration_takes_what_is_given_and_leaves_the_rest(before, given, wanted):
    target, value, costs = before
    found = refit_settings(OperatingPoint(target=target, target_value=value, costs=costs), EvaluationSettings(**given))
    assert (found.target, found.target_value, found.false_positive_cost, found.false_negative_cost) == wanted
