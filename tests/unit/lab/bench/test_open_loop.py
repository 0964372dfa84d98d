"""The open loop: whose adapters are needed, what is sent when, and that its verdicts are compared with a reference."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alora.lab.bench.harness import TimeIsUp
from alora.lab.bench.material import FIRST_CONTENT, token_ids
from alora.lab.bench.open_loop import (
    CHECKED,
    FIRES,
    Generator,
    Load,
    arrivals,
    fired_adapters,
    offer_populations,
    offered,
    offered_rate,
    run_open_loop,
    search,
)
from alora.lab.bench.record import LoadRecord, OfferedRate
from alora.lab.bench.systems import VllmSystem
from tests.unit.lab.bench.cases import right
from tests.unit.lab.bench.load_cases import (
    Engine,
    LoadedSystem,
    conversation,
    generator,
    offered_to,
    references,
    settings,
)


def test_a_longer_conversation_begins_with_a_shorter_one_and_holds_nothing_reserved():
    ids = token_ids(50, 400, seed=3, banned=frozenset({30}))
    assert token_ids(50, 100, seed=3, banned=frozenset({30})) == ids[:100]
    assert min(ids) >= FIRST_CONTENT
    assert 30 not in ids
    assert 30 in token_ids(50, 400, seed=3)
    assert ids != token_ids(50, 400, seed=4, banned=frozenset({30}))


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


def test_popularity_falls_as_zipf_says():
    counts = np.bincount([p for one in arrivals(2000, 1.0, 100, 0) for p in one.policies], minlength=100)
    assert counts[0] > 5 * counts[40]


def test_a_population_of_a_thousand_needs_only_the_adapters_that_it_fires():
    drawn, numbered = arrivals(30, 1.0, 1000, 0), offered(settings((20, 1000), 30), 1.0, 1000)
    assert max(policy for one in drawn for policy in one.policies) > 500
    same = {
        pair for one, two in zip(drawn, numbered, strict=True) for pair in zip(one.policies, two.policies, strict=True)
    }
    assert len({was for was, _ in same}) == len({now for _, now in same}) == len(same)  # one number each, and no other
    assert all(was == now for was, now in same if was < 20)
    assert sorted(now for _, now in same if now >= 20) == list(range(20, max(now for _, now in same) + 1))
    assert fired_adapters(settings((20, 1000), 30)) == 1 + max(now for _, now in same) < 250
    assert fired_adapters(settings((50,), 1)) == 50  # a population that fits keeps all of its adapters


def test_every_population_is_fired_as_often():
    """The fault: how many policies a conversation fires was drawn after which, so that a larger population got less."""
    small, large = (offered(settings((20, 1000), 30), 1.0, many) for many in (20, 1000))
    assert [len(one.policies) for one in small] == [len(one.policies) for one in large]
    assert len({len(one.policies) for one in small}) > 3


@pytest.mark.parametrize(("rate", "at_once"), [(0.0, 1), (50.0, 8)])
def test_one_after_another_or_as_they_arrive(rate, at_once):
    engine = Engine()
    _, found = offered_to(engine, rate, settings(), 4)
    assert len(found.ms) == 9
    assert engine.most == at_once
    assert (found.ms[-1] > 1000) == (rate > 0)  # who waits pays from its arrival on


def test_every_verdict_is_kept_and_the_reference_is_asked_about_some_conversations():
    load, _ = offered_to(Engine(), 1.0, settings(), 1000)
    coming = offered(settings(), 1.0, 1000)
    fired = [((100 + one.conversation, 7), policy) for one in coming for policy in one.policies]
    assert sorted(key for key, _ in load.results) == sorted(fired)
    assert {prefix[0] - 100 for prefix, _ in load.asked} == {0, 2, 4, 6}
    assert CHECKED == 4


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


def test_a_rate_is_sustained_where_the_last_answer_comes_soon_after_the_last_arrival():
    """One conversation alone takes 2 s, which the last one takes too: that is no queue."""
    assert offered_rate(1.0, [2.0, 2.1], seconds=12.0, last=10.0).sustained
    assert not offered_rate(1.0, [2.0, 3.3], seconds=13.3, last=10.0).sustained


@pytest.mark.parametrize("capacity", [0.4, 3.0, 7.0])
def test_the_search_closes_in_on_the_edge(capacity):
    def server(rate: float) -> OfferedRate:
        return OfferedRate(rate, True, 1.0, [500.0 if rate <= capacity else 9000.0] * 20)

    found = search(server, 1000.0, 10)
    best = max(one.rate for one in found if one.meets(1000.0))
    assert 0.8 * capacity < best <= capacity


def test_the_search_gives_up_where_one_alone_is_too_slow():
    assert len(search(lambda rate: OfferedRate(rate, True, 1.0, [9000.0] * 4), 1000.0, 10)) == 1


@pytest.mark.parametrize(
    ("rates", "text"),
    [
        pytest.param([(2.0, True), (8.0, False)], "2.00 to 8.00", id="between two"),
        pytest.param([(2.0, True), (8.0, True)], ">= 8.00", id="every rate held"),
        pytest.param([(2.0, False), (0.5, False)], "< 0.50", id="no rate held"),
        pytest.param([(0.0, False)], "none, not even one after another", id="none"),
        pytest.param([(0.0, True)], "stopped before any was offered", id="the rate of one alone is not a rate"),
    ],
)
def test_a_rate_without_an_edge_is_a_bound(rates, text):
    made = [OfferedRate(rate, True, 1.0, [500.0 if held else 9000.0] * 20) for rate, held in rates]
    assert LoadRecord("rate", "alora", 4, 1000.0, 4, 4, rates=made).rate_text() == text


@pytest.mark.parametrize(("sustained", "ms"), [(False, [1.0]), (True, [])])
def test_a_rate_that_was_not_sustained_or_not_offered_does_not_hold(sustained, ms):
    assert not OfferedRate(1.0, sustained, 1.0, ms).meets(1000.0)


def test_populations_take_turns():
    """The fault: each was offered its load once, so that what the machine did just then looked like its size."""
    given, engine, found = settings(), Engine(), []
    offer_populations(generator(engine, given), 2.0, found)
    few, many = sorted(set(engine.loaded))
    assert engine.loaded == [few, many, many, few, few, many, many, few]  # an even number: each was first as often
    assert [(one.record.population, len(one.record.rates)) for one in found] == [(4, 4), (1000, 4)]
    assert all(rate.rate == 2.0 and len(rate.ms) == 9 for one in found for rate in one.record.rates)
    assert found[1].record.distinct > found[1].record.slots == 4


@pytest.mark.parametrize(
    ("rate", "slots", "reason"), [(2.0, 1000, "not exercised"), (None, 4, "no rate met the target")]
)
def test_a_population_that_would_show_nothing_is_not_run(rate, slots, reason):
    engine, found = Engine(), []
    engine.slots = slots
    offer_populations(generator(engine, settings()), rate, found)
    assert engine.sent == 0
    told = [one.record for one in found if one.record.reason]
    assert told
    assert all(reason in str(one.reason) and not one.rates for one in told)
    assert found[-1].judged(references(found[-1]), 1e-3).refused == []  # what was not run needs no verdict


@pytest.mark.parametrize(("offers", "kept"), [(0, [0]), (1, [1]), (2, [2]), (6, [6]), (8, [6, 1, 1]), (10, [6, 2, 2])])
def test_a_load_that_is_stopped_keeps_what_it_found(offers, kept, monkeypatch):
    """The fault: rates that were tried, and rounds of the populations, were lost with the one that the limit hit."""
    given, engine, found, begun = settings(), Engine(), [], []
    given.rounds = 2
    system: Any = object.__new__(VllmSystem)
    vars(system).update(vars(LoadedSystem(engine)), name="alora", material=None)
    monkeypatch.setattr(VllmSystem, "requests", LoadedSystem.requests)
    stock = Generator.offer

    def limited(self, rate, load):
        begun.append(rate)
        if len(begun) > offers:
            raise TimeIsUp
        return stock(self, rate, load)

    monkeypatch.setattr(Generator, "offer", limited)
    context: Any = SimpleNamespace(harness=SimpleNamespace(in_time=lambda: None), clock=engine)
    with contextlib.nullcontext() if offers == 10 else pytest.raises(TimeIsUp):
        run_open_loop(given, {"alora": system}, conversation, context, found)
    assert [len(one.record.rates) for one in found if one.record.rates or one.record.question == "rate"] == kept
    if offers == 10:  # half of the best rate
        held, _ = found[0].record.bounds()
        assert {rate.rate for one in found[1:] for rate in one.record.rates} == {held / 2}


def test_a_rate_that_is_offered_when_the_time_is_up_is_none():
    """Half a rate says nothing of it."""
    engine, steps = Engine(), []
    one = generator(engine, settings())

    def in_time() -> None:
        steps.append(1)
        if len(steps) > 5:
            raise TimeIsUp

    one.context.harness.in_time = in_time
    load = Load(LoadRecord("rate", "alora", 4, 4000.0, 4, 4))
    with pytest.raises(TimeIsUp):
        one.offer(50.0, load)
    assert engine.busy  # nobody waits for what was under way
    assert (load.results, load.record.rates) == ([], [])
