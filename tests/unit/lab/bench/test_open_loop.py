"""The open loop: what is sent when, and which rate is sustained."""

import numpy as np
import pytest

from alora.config.schema import BenchSettings, ServingBenchSettings
from alora.lab.bench.open_loop import FIRES, arrivals, offered, offered_rate, search
from alora.lab.bench.record import LoadRecord, OfferedRate


def test_arrivals_are_poisson_distinct_and_the_same_at_every_rate():
    slow, fast = (arrivals(4000, rate, 40, seed=1) for rate in (2.0, 8.0))
    assert [one.policies for one in slow] == [one.policies for one in fast]
    assert slow[-1].at == pytest.approx(4 * fast[-1].at)
    gaps = np.diff([one.at for one in fast])
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as an exponential's, and no even spacing's
    assert {len(set(one.policies)) for one in slow} == set(range(FIRES[0], FIRES[1] + 1))
    assert all(len(set(one.policies)) == len(one.policies) for one in slow)
    assert [one.policies for one in arrivals(4, 2.0, 40, seed=1)] == [one.policies for one in slow[:4]]


def test_a_queue_that_only_ran_out_of_arrivals_does_not_hold():
    """The fault: a few conversations at twice what the server can do wait less than a long target, and so it held."""
    coming = offered(BenchSettings(serving=ServingBenchSettings(conversations=30)), 1.0, 4)

    def server(rate: float) -> OfferedRate:
        free, latencies = 0.0, []
        for one in coming:
            at = one.at / rate if rate else free
            free = max(free, at) + 0.25
            latencies.append(free - at)
        return offered_rate(rate, latencies, free, coming[-1].at / rate if rate else 0.0)

    overloaded = server(8.0)
    assert overloaded.percentile(95) < 4000
    assert not overloaded.meets(4000.0)
    entry = LoadRecord("rate", "alora", 4, 4000.0, 4, 4, rates=search(server, 4000.0))
    held, failed = entry.bounds()
    assert held is not None
    assert failed is not None
    assert 2.0 < held < failed < 6.0  # the server can do four
