"""What every interval rests on: as many resamples as asked, each its own, whatever fits into memory at once."""

import numpy as np
import pytest

from alora.evaluation import resampling
from alora.evaluation.resampling import draw_counts


@pytest.mark.parametrize("cells", [1, 70, 10_000])
def test_chunks_are_as_many_resamples_as_asked(monkeypatch, cells):
    monkeypatch.setattr(resampling, "CELLS_AT_ONCE", cells)
    counts_SN = np.vstack(list(draw_counts(10, 25, seed=3)))
    assert counts_SN.shape == (25, 10)
    assert (counts_SN.sum(axis=1) == 10).all()
    assert len({tuple(counts_N) for counts_N in counts_SN}) == 25
