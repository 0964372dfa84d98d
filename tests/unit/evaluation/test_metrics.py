"""Every figure equals scikit-learn's, on the rows and on each of their resamples, of which there are as many as
asked."""

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from alora.evaluation import metrics
from alora.evaluation.metrics import (
    CALIBRATION_BINS,
    compute_metrics,
    draw_counts,
    figure_samples,
    interval,
    reliability_points,
)
from alora.evaluation.records import FIGURES


def rows(seed: int, size: int = 80, levels: int | None = None):
    rng = np.random.default_rng(seed)
    positive = rng.random(size) < 0.4
    probability = np.clip(rng.normal(0.4 + 0.2 * positive, 0.25), 0, 1)
    return positive, probability if levels is None else np.round(probability * levels) / levels


@pytest.mark.parametrize("seed", range(5))
def test_reliability_points_are_those_of_scikit_learn(seed):
    positive, probability = rows(seed, size=300)
    meant, happened, counts = reliability_points(positive, probability)
    true, predicted = calibration_curve(positive, probability, n_bins=CALIBRATION_BINS)
    assert meant == pytest.approx(predicted)
    assert happened == pytest.approx(true)
    assert counts.sum() == 300


def sklearn_figures(positive, probability, threshold, weight):
    fired = probability >= threshold
    alarm, recall, _ = reference.roc_curve(positive, probability, sample_weight=weight, drop_intermediate=False)
    given = {"sample_weight": weight}
    return {
        "accuracy": reference.accuracy_score(positive, fired, **given),
        "balanced_accuracy": reference.balanced_accuracy_score(positive, fired, **given),
        "f1": reference.f1_score(positive, fired, zero_division=0.0, **given),
        "precision": reference.precision_score(positive, fired, zero_division=0.0, **given),
        "recall": reference.recall_score(positive, fired, **given),
        "auroc": reference.roc_auc_score(positive, probability, **given),
        "auprc": reference.average_precision_score(positive, probability, **given),
        "recall_at_1_fpr": recall[alarm <= 0.01].max(),
        "recall_at_5_fpr": recall[alarm <= 0.05].max(),
    }


@pytest.mark.parametrize("levels", [None, 7, 1], ids=["distinct", "ties", "two values"])
@pytest.mark.parametrize("threshold", [0.5, 0.31, 1.1, 0.0])
def test_point_estimates_equal_scikit_learn(levels, threshold):
    positive, probability = rows(1, levels=levels)
    got = compute_metrics(positive, probability, threshold, resamples=0)
    want = sklearn_figures(positive, probability, threshold, np.ones(len(positive)))
    for name, value in want.items():
        assert got.value(name) == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("levels", [None, 9])
def test_every_resample_equals_scikit_learn(levels):
    positive, probability = rows(2, size=40, levels=levels)
    counts = np.vstack(list(draw_counts(len(positive), 10, seed=3)))
    got = figure_samples(positive, probability, 0.45, counts)
    for sample, weight in zip(got, counts, strict=True):
        want = sklearn_figures(positive, probability, 0.45, weight)
        for name, value in want.items():
            assert sample[FIGURES.index(name)] == pytest.approx(value, abs=1e-12), name


def test_calibration_error_by_hand():
    positive = np.array([True, False, True, False])
    probability = np.array([0.9, 0.91, 0.1, 0.12])  # bins 13, 13, 1, 1
    want = (abs(1 - 0.9 + 0 - 0.91) + abs(1 - 0.1 + 0 - 0.12)) / 4
    assert compute_metrics(positive, probability, 0.5, resamples=0).value("ece") == pytest.approx(want)
    assert compute_metrics(positive, positive.astype(float), 0.5, resamples=0).value("ece") == 0.0
    highest = compute_metrics(np.array([False, True]), np.array([0.92, 0.95]), 0.5, resamples=0)  # bins 13, 14
    assert highest.value("ece") == pytest.approx((0.92 + 0.05) / 2)


def test_the_interval_of_the_calibration_error_holds_its_value():
    """The control are plain percentiles, which lie above it: every resample is worse calibrated than its rows."""
    generator = np.random.default_rng(0)
    missed = 0
    for seed in range(40):
        probability = generator.uniform(size=300)
        positive = generator.uniform(size=300) < probability
        ece = compute_metrics(positive, probability, 0.5, resamples=200, seed=seed).figures["ece"]
        assert 0 <= ece.low <= ece.value <= ece.high
        samples = [figure_samples(positive, probability, 0.5, counts) for counts in draw_counts(300, 200, seed)]
        missed += interval(np.vstack(samples))[0][FIGURES.index("ece")] > ece.value
    assert missed > 2


@pytest.mark.parametrize(("alarms", "name"), [(1, "recall_at_1_fpr"), (5, "recall_at_5_fpr")])
def test_a_rate_of_exactly_the_limit_is_held(alarms, name):
    positive = np.r_[np.ones(50), np.zeros(100)].astype(bool)
    probability = np.r_[np.full(50, 0.8), np.full(alarms, 0.9), np.linspace(0.0, 0.5, 100 - alarms)]
    assert compute_metrics(positive, probability, 0.5, resamples=0).value(name) == 1.0
    probability[50 + alarms] = 0.85  # one more of a hundred is too many
    assert compute_metrics(positive, probability, 0.5, resamples=0).value(name) == 0.0


def test_interval_covers_the_truth_about_as_often_as_it_says():
    """Accuracy's true value is known here; a 95 % interval that is far too narrow or wide would show."""
    covered = 0
    for seed in range(200):
        right = np.random.default_rng(seed).random(150) < 0.8
        accuracy = compute_metrics(right, np.ones(150), 0.5, resamples=200, seed=seed).figures["accuracy"]
        covered += accuracy.low <= 0.8 <= accuracy.high
    assert 176 <= covered <= 198


def test_one_class_leaves_figures_undefined_not_wrong():
    got = compute_metrics(np.zeros(6, bool), np.linspace(0, 1, 6), 0.5, resamples=20)
    for name in ("auroc", "auprc", "balanced_accuracy", "recall", "recall_at_1_fpr", "recall_at_5_fpr"):
        assert got.figures[name] == type(got.figures[name])(None), name
    assert got.value("accuracy") == 0.5
    got = compute_metrics(np.ones(6, bool), np.linspace(0, 1, 6), 0.5, resamples=20)
    for name in ("auroc", "balanced_accuracy", "recall_at_1_fpr", "recall_at_5_fpr"):
        assert got.figures[name] == type(got.figures[name])(None), name


@pytest.mark.parametrize("cells", [1, 70, 10_000])
def test_chunks_are_as_many_resamples_as_asked(monkeypatch, cells):
    monkeypatch.setattr(metrics, "CELLS_AT_ONCE", cells)
    counts_SN = np.vstack(list(draw_counts(10, 25, seed=3)))
    assert counts_SN.shape == (25, 10)
    assert (counts_SN.sum(axis=1) == 10).all()
    assert len({tuple(counts_N) for counts_N in counts_SN}) == 25
