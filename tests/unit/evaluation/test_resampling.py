"""What every interval rests on: as many resamples as asked, each its own, whatever fits into memory at once."""

import numpy as np
import pytest

from alora.evaluation import resampling
from alora.evaluation.metrics import compute_metrics
from alora.evaluation.resampling import COVERAGE, draw_counts


@pytest.mark.parametrize("cells", [1, 70, 10_000])
def test_chunks_are_as_many_resamples_as_asked(monkeypatch, cells):
    monkeypatch.setattr(resampling, "CELLS_AT_ONCE", cells)
    counts_SN = np.vstack(list(draw_counts(10, 25, seed=3)))
    assert counts_SN.shape == (25, 10)
    assert (counts_SN.sum(axis=1) == 10).all()
    assert len({tuple(counts_N) for counts_N in counts_SN}) == 25


def test_an_interval_holds_95_percent_of_the_resamples():
    assert COVERAGE == (2.5, 97.5)
    rng = np.random.default_rng(0)
    positive_N, probability_N = np.arange(200) % 2 == 0, rng.random(200)
    accuracy = compute_metrics(positive_N, probability_N, 0.5, resamples=4000, seed=1).figures["accuracy"]
    right = float(((probability_N >= 0.5) == positive_N).mean())
    spread = 1.96 * (right * (1 - right) / 200) ** 0.5
    assert accuracy.low == pytest.approx(right - spread, abs=0.008)
    assert accuracy.high == pytest.approx(right + spread, abs=0.008)
