"""The open loop: whose adapters are needed, what is sent when, and that its verdicts are held to a reference."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from alora.bench.serving import run
from alora.bench.serving.arms import VllmArm
from alora.bench.serving.context import TimeIsUp
from alora.bench.serving.draws import arrivals, distinct_adapters, only_fired
from alora.bench.serving.evaluate import judge_open_loop
from alora.bench.serving.loop_report import open_loop_section
from alora.bench.serving.marks import rate_bounds, rate_text
from alora.bench.serving.offer import KEPT, Probe, kept, probe
from alora.bench.serving.open_loop import _cliff, by_round, run_open_loop, search
from alora.bench.serving.plan import offered, open_loop_adapters
from alora.bench.serving.plots import _open_loop as drawn
from alora.bench.serving.records import Verdict
from alora.bench.serving.reference import References
from alora.bench.serving.report import _agreement, _withheld, faults
from alora.errors import CheckFailed, ConfigError
from tests.unit.bench.loop_cases import ARM, Engine, bench_of, loop, references, settings
from tests.unit.bench.serving_cases import right


def test_a_population_of_a_thousand_needs_only_the_adapters_that_it_fires():
    drawn, numbered = arrivals(30, 1.0, 1000, [4, 8], 1.0, 0), offered(settings((20, 1000), 30, (4, 8)), 1.0, 1000)
    assert max(place for one in drawn for place in one.places) > 500
    assert distinct_adapters(numbered) == distinct_adapters(drawn)
    same = {pair for one, two in zip(drawn, numbered, strict=True) for pair in zip(one.places, two.places, strict=True)}
    assert len({was for was, _ in same}) == len({now for _, now in same}) == len(same)  # one number each, and no other
    assert all(was == now for was, now in same if was < 20)
    assert sorted(now for _, now in same if now >= 20) == list(range(20, max(now for _, now in same) + 1))
    needed = open_loop_adapters(settings((20, 1000), 30, (4, 8)))
    assert needed == 1 + max(now for _, now in same) < 200


def test_every_population_is_fired_as_often():
    """The fault: how many policies a conversation fires was drawn after which, so that a larger population got less."""
    small, large = (offered(settings((20, 1000), 30, (4, 8)), 1.0, many) for many in (20, 1000))
    assert [len(one.places) for one in small] == [len(one.places) for one in large]
    assert len({len(one.places) for one in small}) > 3


def test_a_population_that_fits_keeps_all_of_its_adapters():
    few = settings((50,), batteries=1, fires=(1, 1))
    assert open_loop_adapters(few) == 50
    assert only_fired(offered(few, 1.0, 50), 50) == arrivals(1, 1.0, 50, [1, 1], 1.0, 0)


@pytest.mark.parametrize(("rate", "at_once"), [(0.0, 1), (50.0, 8)])
def test_one_after_another_or_as_they_arrive(rate, at_once):
    engine = Engine()
    _, found = loop(engine, rate, settings(), 4)
    assert found.complete
    assert len(found.latencies) == 9
    assert engine.most == at_once
    assert (found.latencies[-1] > 1.0) == (rate > 0)  # who waits pays from its arrival on


def judged(wrong: frozenset[int] = frozenset(), moved: float = 0.5, population: int = 1000) -> dict[str, Any]:
    """An open loop that was run and held to references that know what it kept."""
    bench, found = loop(Engine(wrong), 1.0, settings(), population)
    bench.references = references(bench, moved)
    entry = {
        "kind": "population", "arm": "alora", "population": 1000, "slots": 4, "distinct": 20, "target_ms": 1000.0,
        "reason": None, "probe": by_round([found]),
    }  # fmt: skip
    judge_open_loop(bench, [entry])
    return {"cells": [], "open_loop": [entry], "tolerance": 1e-3}


def test_every_verdict_is_kept_and_the_reference_is_asked_about_some_conversations():
    bench, _ = loop(Engine(), 1.0, settings(), 1000)
    coming = offered(settings(), 1.0, 1000)
    fired = [((100 + one.conversation, 7), place) for one in coming for place in one.places]
    assert sorted((v.prefix_ids, v.place) for v in bench.verdicts) == sorted(fired)
    asked = {v.prefix_ids[0] - 100 for v in bench.verdicts if v.asked}
    assert asked == kept(9) == {0, 2, 4, 6}
    assert kept(2) == {0, 1}
    assert len(asked) == KEPT


def test_right_verdicts_of_the_open_loop_stand_beside_its_rate():
    results = judged()
    assert faults(results) == []
    asked = sum(len(one.places) for one in offered(settings(), 1.0, 1000) if one.conversation in kept(9))
    assert f"| alora | PEFT's aLoRA | {asked} | {asked} | 0.0e+00 |" in _agreement(results)


def test_a_wrong_slot_under_load_is_a_failure_though_no_reference_was_asked_about_it():
    """The fault: beside others, one policy answers as another, but not in a conversation that PEFT reads too."""
    coming = offered(settings(), 1.0, 4)
    bench = bench_of(Engine(), settings())
    for rate in (0.0, 50.0):
        bench.engine = bench.clock = Engine(frozenset({0}), crowded=8)
        probe(bench, ARM, rate, 4)
    asked = {(100 + one.conversation, 7) for one in coming if one.conversation in kept(9)}
    bench.verdicts = [v if v.prefix_ids not in asked else replace(v, scores=right(v.place)) for v in bench.verdicts]
    bench.references = references(bench)
    entry: dict[str, Any] = {"kind": "rate", "arm": "alora", "population": 4, "probe": None}
    judge_open_loop(bench, [entry])
    assert len(entry["refused"]) == 1
    assert "its own verdicts change" in entry["refused"][0]


def test_a_queue_that_only_ran_out_of_arrivals_does_not_hold():
    """The fault: a few conversations at twice what the server can do wait less than a long target, and so it held."""
    coming = offered(settings(batteries=30, fires=(4, 4)), 1.0, 4)

    def server(rate: float) -> Probe:
        free, latencies = 0.0, []
        for one in coming:
            at = one.at / rate if rate else free
            free = max(free, at) + 0.25
            latencies.append(free - at)
        return Probe(rate, tuple(latencies), True, free, coming[-1].at / rate if rate else 0.0)

    overloaded = server(8.0)
    assert overloaded.p95 < 4.0
    assert not overloaded.holds(4.0)
    entry = {"kind": "rate", "arm": "alora", "population": 4, "target_ms": 4000.0}
    entry["probes"] = [one.sample() for one in search(server, 4.0, 5)]
    held, failed = rate_bounds(entry)
    assert held is not None
    assert failed is not None
    assert 2.0 < held < failed < 6.0  # the server can do four
    assert "fell behind" in open_loop_section([entry])


@pytest.mark.parametrize("steps", [60, 0])
def test_one_straggler_of_many_does_not_decide_a_percentile(steps):
    """The fault: one conversation beyond hope ended the rate, although 39 of 40 were in time."""
    given = settings(batteries=40, fires=(1, 1))
    given.serving.target_ms = 1000.0
    _, found = loop(Engine(slow=(110, steps)), 2.0, given, 4)
    assert (max(found.latencies) > 5.0) == (steps > 0)
    assert found.complete
    assert found.holds(1.0)


def test_a_rate_that_must_fail_is_given_up_early():
    given = settings(batteries=40)
    given.serving.target_ms = 200.0
    _, found = loop(Engine(), 100.0, given, 4)
    assert not found.complete
    assert len(found.latencies) >= 3
    assert found.seconds < 2.0


def test_one_after_another_is_given_up_once_it_must_fail():
    """The fault: standard LoRA answered a hundred conversations that were each too late, half a minute of a GPU."""
    given = settings(batteries=40, fires=(4, 4))
    given.serving.target_ms = 150.0
    _, found = loop(Engine(), 0.0, given, 4)
    assert not found.complete
    assert len(found.latencies) == 3  # of 40, one more than may be late
    assert found.p95 >= 0.15


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (TimeIsUp("the limit of 9 s was reached"), "the limit of 9 s was reached"),
        (CheckFailed("vLLM did not empty its prefix cache"), "CheckFailed: vLLM did not empty its prefix cache"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), "OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_an_open_loop_that_is_stopped_keeps_what_was_finished(error, reason, monkeypatch):
    """The fault: a run of the open loop alone has no cells, and Ctrl-C took the finished rates with it."""

    def interrupted(bench: Any, found: list[dict[str, Any]]) -> None:
        found += finished
        raise error

    bench: Any = SimpleNamespace(
        settings=settings(), cells=[], arms={}, keep_whole_rounds=lambda: None, in_time=lambda: None
    )
    bench.settings.serving.workloads = ["open_loop"]
    monkeypatch.setattr(run, "run_open_loop", interrupted)
    finished: list[dict[str, Any]] = [{"kind": "rate"}]
    try:
        kept_entries = run._run_workloads(bench)
    except type(error):  # pytest would take a KeyboardInterrupt for its own
        pytest.fail("the finished rate was thrown away")
    assert kept_entries == (finished, reason)
    finished = []
    with pytest.raises(ConfigError if isinstance(error, TimeIsUp) else type(error)):
        run._run_workloads(bench)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"wrong": frozenset(range(4, 100))}, "verdicts differ from PEFT's aLoRA"),
        ({"moved": 0.0}, "would prove nothing"),
        ({"population": 4}, "no verdict was compared"),
    ],
)
def test_an_open_loop_whose_verdicts_nobody_can_vouch_for_is_a_failure(how, told):
    results = judged(**how)
    assert [told in fault for fault in faults(results)] == [True]
    assert told in _withheld(results)
    rate = results["open_loop"][0] | {"kind": "rate", "probes": results["open_loop"][0]["probe"]["rounds"]}
    assert "| alora | 1000 | withheld |" in open_loop_section([rate])
    assert "| 1.00 | - | withheld |" in open_loop_section(results["open_loop"])


def test_populations_take_turns():
    """The fault: each was offered its load once, so that what the machine did just then looked like its size."""
    given = settings()
    given.rounds = 3
    bench, found, loaded = bench_of(Engine(), given), [], []
    bench.engine.options = SimpleNamespace(slots=4)
    bench.bar.set_description = lambda text: None
    arm: Any = SimpleNamespace(name=ARM.name, asks=ARM.asks, load=lambda places: loaded.append(len(places)))
    _cliff(bench, arm, 2.0, found)
    few, many = sorted(set(loaded))
    assert loaded == [few, many, many, few, few, many, many, few]  # an even number: each was first as often
    assert [(entry["population"], len(entry["probe"]["rounds"])) for entry in found] == [(4, 4), (1000, 4)]
    assert all(one["rate"] == 2.0 and len(one["ms"]) == 9 for entry in found for one in entry["probe"]["rounds"])


@pytest.mark.parametrize(("probes", "left"), [(0, []), (1, [1]), (2, [2]), (3, [3]), (6, [3, 1, 1]), (7, [3, 2, 2])])
def test_a_load_that_is_stopped_keeps_what_it_found(probes, left, monkeypatch):
    """The fault: rates that were tried, and rounds of the populations, were lost with the one that the limit hit."""
    given = settings()
    given.rounds, given.serving.probes, given.serving.open_loop_arms = 2, 2, ["alora"]
    bench, found, begun = bench_of(Engine(), given), [], []
    bench.engine.options, bench.engine.load = SimpleNamespace(slots=4), lambda kind, places: None
    bench.engine.answer = bench.ready = bench.bar.set_description = bench.bar.reset = lambda *args: None
    bench.arms = {"alora": VllmArm("alora", "alora", bench.engine, bench)}
    monkeypatch.setattr(VllmArm, "asks", lambda self, prefix, places: ARM.asks(prefix, places))

    def limited(bench, arm, rate, population, kind="rate"):
        begun.append(rate)
        if len(begun) > probes:
            raise TimeIsUp
        return probe(bench, arm, rate, population, kind)

    monkeypatch.setattr("alora.bench.serving.open_loop.probe", limited)
    with contextlib.nullcontext() if probes == 7 else pytest.raises(TimeIsUp):
        run_open_loop(bench, found)
    told = [len(entry["probes"]) if entry["kind"] == "rate" else len(entry["probe"]["rounds"]) for entry in found]
    assert told == left
    for entry in found[:1]:
        assert (entry["best_rate"], entry["failed_rate"]) == rate_bounds(entry)
        assert (rate_text(entry) == "stopped before any was tried") == (probes == 1)


def test_a_rate_that_is_offered_when_the_time_is_up_is_none():
    """Half a rate says nothing of it."""
    bench, steps = bench_of(Engine(), settings()), []

    def in_time() -> None:
        steps.append(1)
        if len(steps) > 5:
            raise TimeIsUp

    bench.in_time = in_time
    with pytest.raises(TimeIsUp):
        probe(bench, ARM, 50.0, 4)
    assert bench.engine.busy  # nobody waits for what was under way
    assert bench.verdicts == []


def test_a_population_that_was_not_run_needs_no_verdict():
    bench: Any = SimpleNamespace(verdicts=[Verdict("alora", "population", 4, (7,), 0, (0.0, 0.0))], tolerance=1e-3)
    bench.references = References({((7,), 0): (0.5, 0.5)}, {}, {}, {})
    entry: dict[str, Any] = {"kind": "population", "arm": "alora", "population": 1000, "probe": None}
    judge_open_loop(bench, [entry])
    assert (entry["agreement"], entry["refused"]) == ([], [])


def test_the_plot_shows_every_loaded_rate_and_marks_those_given_up():
    figure = pytest.importorskip("matplotlib.figure")
    probes = [Probe(0.0, (0.5,) * 4, True, 1.0), Probe(4.0, (9.0,) * 4, False, 1.0), Probe(1.0, (0.7,) * 4, True, 1.0)]
    probes.append(Probe(2.0, (0.8,) * 4, True, 9.0, last=1.0))  # answered long after the last one came
    entry = {"kind": "rate", "arm": "alora", "population": 4, "target_ms": 1000.0}
    axes = figure.Figure().subplots()
    assert drawn(axes, [entry | {"probes": [one.sample() for one in probes]}])
    assert [list(line.get_xdata()) for line in axes.lines[:3]] == [[1.0, 2.0, 4.0], [2.0], [4.0]]
    assert drawn(axes, [entry | {"probes": [probes[2].sample()], "refused": ["alora: wrong"]}])
    assert any(", withheld" in label for label in axes.get_legend_handles_labels()[1])
    assert not drawn(figure.Figure().subplots(), [entry | {"probes": [probes[0].sample()]}])
