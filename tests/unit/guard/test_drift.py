"""The population stability index, by its definition and over the last verdicts."""

import numpy as np
import pytest

from alora.guard.drift import LAST, Drift
from alora.verdict import LEAST, population_stability, tenth

EVEN = [100] * 10


def test_the_index_is_its_definition():
    before, after = [50, 30, 0, 20, 0, 0, 0, 0, 0, 900], [10, 30, 5, 20, 0, 0, 0, 0, 0, 60]
    p, q = ((np.array(counts) + 0.5) / (sum(counts) + 5) for counts in (before, after))
    assert population_stability(before, after) == pytest.approx(np.sum((q - p) * np.log(q / p)))
    assert population_stability(before, before) == 0
    assert population_stability(EVEN, [count * 3 for count in EVEN]) == pytest.approx(0, abs=1e-9)


def test_the_last_verdicts_alone_are_compared():
    drift = Drift(EVEN)
    for probability in (0.05, *[0.95] * (LAST - 1)):
        drift.add(probability)
    assert drift.psi == population_stability(EVEN, [1, *[0] * 8, LAST - 1])
    drift.add(0.95)
    assert drift.psi == population_stability(EVEN, [*[0] * 9, LAST])


def test_too_few_rows_or_verdicts_say_nothing():
    assert Drift(None).psi is None
    few, drift = Drift([LEAST - 1, *[0] * 9]), Drift(EVEN)
    for number in range(LEAST):
        assert drift.psi is None
        few.add(0.05)
        drift.add(number / LEAST)
    assert few.psi is None
    assert drift.psi == pytest.approx(0, abs=0.01)


def test_tenths_hold_every_probability():
    assert [tenth(value) for value in (0.0, 0.05, 0.15, 0.95, 1.0)] == [0, 0, 1, 9, 9]
