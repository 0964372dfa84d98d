"""Paired tests of AUROC, against definitions written out, scikit-learn, and chance itself."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from alora.evaluation.paired import holm, mean_auroc, paired_auroc, two_sided


def rows(count: int = 60, quality: float = 1.0, seed: int = 0, ties: bool = False):
    """Labels, a score that knows them more or less, and one that knows nothing."""
    random = np.random.default_rng(seed)
    positive_N = random.random(count) < 0.4
    good_N, blind_N = positive_N * quality + random.normal(size=count), random.normal(size=count)
    return (positive_N, good_N.round(1), blind_N.round(1)) if ties else (positive_N, good_N, blind_N)


def delong_by_definition(positive_N, first_N, second_N) -> float:
    """DeLong et al. 1988, equations 2 to 6, pair by pair."""

    def kernel(x: float, y: float) -> float:
        return 1.0 if y < x else 0.5 if y == x else 0.0

    areas, v10, v01 = [], [], []
    for scores_N in (first_N, second_N):
        hits, misses = scores_N[positive_N], scores_N[~positive_N]
        matrix = np.array([[kernel(x, y) for y in misses] for x in hits])
        areas.append(matrix.mean())
        v10.append(matrix.mean(axis=1))
        v01.append(matrix.mean(axis=0))
    covariance = np.cov(v10) / len(v10[0]) + np.cov(v01) / len(v01[0])
    contrast = np.array([1.0, -1.0])
    z = (areas[0] - areas[1]) / math.sqrt(contrast @ covariance @ contrast)
    return 2 * norm.sf(abs(z))


@pytest.mark.parametrize("ties", [False, True])
def test_delong_is_its_definition(ties):
    for seed in range(5):
        positive_N, good_N, blind_N = rows(40, 0.8, seed, ties)
        ours = paired_auroc(positive_N, good_N, blind_N, resamples=0)
        assert ours.p_delong == pytest.approx(delong_by_definition(positive_N, good_N, blind_N), abs=1e-12)
        expected = roc_auc_score(positive_N, good_N) - roc_auc_score(positive_N, blind_N)
        assert ours.value == pytest.approx(expected, abs=1e-12)


def test_several_runs_count_by_their_mean():
    positive_N, good_N, blind_N = rows()
    both = np.stack([good_N, blind_N])
    assert mean_auroc(positive_N, both) == pytest.approx(
        (roc_auc_score(positive_N, good_N) + roc_auc_score(positive_N, blind_N)) / 2
    )
    twice = paired_auroc(positive_N, np.stack([good_N, good_N]), blind_N, 50)
    once = paired_auroc(positive_N, good_N, blind_N, 50)
    assert twice.p_delong == pytest.approx(once.p_delong)
    np.testing.assert_allclose(twice.samples_S, once.samples_S, atol=1e-12)


def test_the_bootstrap_is_scikit_learns_on_drawn_rows():
    positive_N, good_N, blind_N = rows(50)
    found = paired_auroc(positive_N, good_N, blind_N, resamples=20, seed=3)
    generator = np.random.default_rng(3)
    counts_SN = generator.multinomial(50, np.full(50, 1 / 50), size=20)
    for sample, counts in zip(found.samples_S, counts_SN, strict=True):
        drawn = np.repeat(np.arange(50), counts)
        areas = [roc_auc_score(positive_N[drawn], scores[drawn]) for scores in (good_N, blind_N)]
        assert sample == pytest.approx(areas[0] - areas[1], abs=1e-12)
    assert found.low <= found.value <= found.high
    assert (found.low, found.high) == tuple(np.percentile(found.samples_S, (2.5, 97.5)))  # 95 %


def test_p_of_a_bootstrap_is_never_zero():
    assert two_sided(np.ones(999)) == pytest.approx(2 / 1000)
    assert math.isnan(two_sided(np.empty(0)))


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # R: p.adjust(p, "holm")
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with_nan = holm([0.02, math.nan, 0.01])  # R: p.adjust counts what is not NA alone
    assert math.isnan(with_nan[1])
    assert with_nan[::2] == pytest.approx([0.02, 0.02])
