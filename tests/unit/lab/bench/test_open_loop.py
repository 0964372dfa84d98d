"""The open loop: whose adapters are needed, what is sent when, and that its verdicts are compared with a reference."""

import numpy as np
import pytest

from alora.lab.bench.open_loop import FIRES, Load, arrivals, offer_populations, offered, offered_rate, search
from alora.lab.bench.record import LoadRecord, OfferedRate
from tests.unit.lab.bench.cases import right
from tests.unit.lab.bench.load_cases import Engine, generator, offered_to, references, settings


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


@pytest.mark.parametrize(
    ("wrong", "moved", "asked", "codes"),
    [
        (frozenset(), 0.5, True, []),
        (frozenset(range(2, 100)), 0.5, True, ["UNEQUAL_VERDICTS"]),
        (frozenset(), 0.0, True, ["INERT_ADAPTERS"]),
        (frozenset(), 0.5, False, ["NOT_COMPARED"]),
    ],
)
def test_a_rate_whose_verdicts_nobody_can_vouch_for_is_withheld(wrong, moved, asked, codes):
    load, _ = offered_to(Engine(wrong), 1.0, settings(), 1000)
    if not asked:
        load.asked = set()
    found = load.judged(references(load, moved), 1e-3)
    assert [one.code for one in found.refused] == codes
    assert found.rate_text().startswith("withheld: ") == bool(codes)
    assert (found.agreement[0].checked if found.agreement else 0) == len(load.asked)


def test_a_wrong_slot_under_load_is_seen_though_no_reference_was_asked_about_it():
    """The fault: among others, one policy answers as another, but not in a conversation that PEFT reads too."""
    load = Load(LoadRecord("rate", "alora", 4, 4000.0, 4, 4))
    for rate in (0.0, 50.0):
        generator(Engine(frozenset({0}), crowded=8), settings()).offer(rate, load)
    keys = {prefix for prefix, _ in load.asked}
    load.results = [
        (key, answer if key[0] not in keys else type(answer)(answer.piece, scores=right(key[1])))
        for key, answer in load.results
    ]
    found = load.judged(references(load), 1e-3)
    assert [one.code for one in found.refused] == ["UNSTEADY_VERDICTS"]


def test_a_queue_that_only_ran_out_of_arrivals_does_not_hold():
    """The fault: a few conversations at twice what the server can do wait less than a long target, and so it held."""
    coming = offered(settings(conversations=30), 1.0, 4)

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


@pytest.mark.parametrize("capacity", [0.4, 3.0, 7.0])
def test_the_search_closes_in_on_the_edge(capacity):
    def server(rate: float) -> OfferedRate:
        return OfferedRate(rate, True, 1.0, [500.0 if rate <= capacity else 9000.0] * 20)

    found = search(server, 1000.0, 10)
    best = max(one.rate for one in found if one.meets(1000.0))
    assert 0.8 * capacity < best <= capacity


def test_populations_take_turns():
    """The fault: each was offered its load once, so that what the machine did just then looked like its size."""
    given, engine, found = settings(), Engine(), []
    offer_populations(generator(engine, given), 2.0, found)
    few, many = sorted(set(engine.loaded))
    assert engine.loaded == [few, many, many, few, few, many, many, few]  # an even number: each was first as often
    assert [(one.record.population, len(one.record.rates)) for one in found] == [(4, 4), (1000, 4)]
    assert all(rate.rate == 2.0 and len(rate.ms) == 9 for one in found for rate in one.record.rates)
    assert found[1].record.distinct > found[1].record.slots == 4
