"""What stands beside a figure: extrapolated, a bound only, not exercised, and with what chance an interval holds."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from alora.bench.serving.arms import VllmArm
from alora.bench.serving.draws import arrivals, distinct_adapters
from alora.bench.serving.loop_report import open_loop_section
from alora.bench.serving.marks import coverage_text, mark, range_coverage, rate_bounds, rate_text, spent_text
from alora.bench.serving.offer import Probe
from alora.bench.serving.open_loop import _cliff, by_round, cliff_rate, search, unexercised
from alora.bench.serving.plan import offered
from alora.bench.serving.plots import _lines, _speed_up
from alora.bench.serving.report import _split, _workload
from scripts.serving_results import published_block


def cell(scale: float, workload: str = "grid", ran: int = 5) -> dict[str, Any]:
    """LoRA ran two of five adapters a round, though all five over the rounds; aLoRA all of them."""
    figures = {"battery_ms": {"p50": {"value": 900.0, "low": 800.0, "high": 950.0}}, "run": {"ran": ran, "of": 5},
               "split_ms": {"front": 1.0, "host": 1.0, "model": 7.0}}  # fmt: skip
    ratio = {"median": 9.0, "low": 8.0, "high": 9.5, "coverage": 0.75}
    samples = [{"arm": arm, "round": n, "ms": 9.0} for n in range(3) for arm in ("alora", "lora")]
    if scale != 1.0:
        samples = [s | {"scale": scale} if s["arm"] == "lora" else s for s in samples]
    return {
        "workload": workload, "at": {"length": 1000, "adapters": 100}, "samples": samples,
        "arms": {"alora": figures, "lora": figures},
        "ratios": [{"baseline": "lora", "ratio": ratio, "token_ratio": 2.5, "refused": []}],
    }  # fmt: skip


def run_of(*cells: dict[str, Any]) -> dict[str, Any]:
    null = {"grid": {"median": 1.0, "low": 0.9, "high": 1.1, "coverage": 0.992}}
    return {"ours": "alora", "cells": list(cells), "null": null, "engine": {"name": "vllm"}}


def test_a_part_that_stands_for_the_whole_is_marked_whatever_the_rounds_covered():
    assert mark(cell(2.5), "lora") == "~"
    assert mark(cell(2.5), "alora") == ""
    assert mark(cell(1.0, ran=3), "lora") == ""


def test_every_table_marks_it():
    part, whole = (run_of(cell(scale)) for scale in (2.5, 1.0))
    assert "| ~900 [800, 950] |" in _workload(part, "grid")
    assert "~**9.0** [8.0, 9.5]" in _workload(part, "grid")
    assert "| ~2.5 |" in _workload(part, "grid")
    assert "| ~lora |" in _split(part)
    assert "~900 → 900 (~9.00x)" in published_block(part)
    for text in (_workload(whole, "grid").split("\n\nLatency")[0], _split(whole), published_block(whole)):
        assert "~" not in text


def test_plots_mark_it():
    pyplot = pytest.importorskip("matplotlib.figure")
    for scale, told in ((2.5, True), (1.0, False)):
        axes = pyplot.Figure().subplots()
        _lines(axes, [cell(scale)], "length")
        assert ("lora (~ extrapolated)" in axes.get_legend_handles_labels()[1]) is told
        assert "alora" in axes.get_legend_handles_labels()[1]
        axes = pyplot.Figure().subplots()
        _speed_up(axes, [cell(scale)])
        assert [text.get_text() for text in axes.texts] == ["~9.0x" if told else "9.0x"]
        assert axes.texts[0].get_color() == "white"  # on the darkest green there is
        assert ("extrapolated" in axes.get_title()) is told


def test_tables_say_with_what_chance_their_intervals_hold():
    text = _workload(run_of(cell(1.0)), "grid")
    assert "over 3 rounds lies within their range, which holds the true one with a chance of 75 %" in text
    assert "A ratio's interval: 75 %" in text
    assert "[0.900, 1.100], which holds the true value with a chance of 99 %" in text
    assert range_coverage(8) > 0.99
    assert coverage_text([0.992, 0.75, 0.754]) == "75 % or 99 %"


def server(capacity: float):
    return lambda rate: Probe(rate, (0.5,) * 20 if rate <= capacity else (9.0,) * 20, True, 1.0)


@pytest.mark.parametrize(
    ("capacity", "told"),
    [
        pytest.param(3.0, "2.00 to 8.00", id="between two"),
        pytest.param(1e9, ">= 8.00", id="every rate held"),
        pytest.param(0.1, "< 0.50", id="no rate held"),
    ],
)
def test_a_rate_without_an_edge_is_a_bound(capacity, told):
    probes = search(server(capacity), target=1.0, probes=2)
    entry = {"target_ms": 1000.0, "probes": [one.sample() for one in probes]}
    assert rate_text(entry) == told


def test_the_rate_of_one_alone_is_no_rate():
    """The fault: nothing but the conversations one after another held, and 0.00 a second was told as the answer."""
    entry = {
        "kind": "rate", "arm": "lora", "population": 50, "target_ms": 1000.0,
        "probes": [one.sample() for one in search(server(0.1), target=1.0, probes=1)],
    }  # fmt: skip
    assert rate_bounds(entry) == (None, 2.0)
    assert "| < 2.00 |" in open_loop_section([entry])
    given_up = Probe(3.0, (9.0,) * 20, False, 1.0).sample()
    assert "3.00/s p95 >= 9000 ms" in open_loop_section([entry | {"probes": [given_up]}])
    assert rate_text(entry | {"probes": [Probe(0.0, (9.0,) * 4, True, 1.0).sample()]}).startswith("none")


def test_the_anchor_offers_the_same_conversations_as_a_loaded_rate():
    serving = SimpleNamespace(batteries=12, fires=[2, 6], zipf=1.0, populations=[20])
    settings: Any = SimpleNamespace(seed=3, serving=serving)
    alone, loaded = (offered(settings, rate, 20) for rate in (1.0, 5.0))
    assert [one.places for one in alone] == [one.places for one in loaded]
    fewer = arrivals(4, 1.0, 20, [2, 6], 1.0, seed=3)
    assert [(one.at, one.places) for one in fewer] == [(one.at, one.places) for one in alone[:4]]


def test_a_population_within_the_slots_shows_nothing_of_what_is_beyond():
    coming = arrivals(8, 1.0, 150, [5, 10], 1.0, seed=0)
    distinct = distinct_adapters(coming)
    assert distinct == len({place for one in coming for place in one.places})
    assert unexercised(distinct, distinct, rate=1.0) == f"not exercised: {distinct} distinct adapters, {distinct} slots"
    assert unexercised(distinct, distinct - 1, rate=1.0) is None
    assert unexercised(distinct, distinct - 1, rate=0.0) is None
    assert "no rate held" in str(unexercised(distinct, distinct - 1, rate=None))


def test_populations_are_compared_where_the_arm_keeps_up():
    assert cliff_rate(3.0, alone=True) == 1.5
    assert cliff_rate(None, alone=True) == 0.0  # one after another
    assert cliff_rate(None, alone=False) is None


def test_a_cliff_that_would_show_nothing_costs_no_probe():
    """An engine that can do nothing but tell its slots: neither adapters are loaded nor conversations sent."""
    serving = SimpleNamespace(batteries=8, fires=[5, 10], zipf=1.0, populations=[150, 50], target_ms=1000.0)
    engine = SimpleNamespace(options=SimpleNamespace(slots=100))
    bench: Any = SimpleNamespace(settings=SimpleNamespace(seed=0, rounds=3, serving=serving), engine=engine)
    found: list[dict[str, Any]] = []
    _cliff(bench, VllmArm("alora", "alora", cast(Any, engine), cast(Any, None)), 2.0, found)
    assert [(entry["population"], entry["probe"]) for entry in found] == [(150, None)]
    assert found[0]["distinct"] < 100
    assert found[0]["reason"].startswith("not exercised")


def test_the_report_says_that_a_cliff_was_not_exercised():
    probe = by_round([Probe(2.0, (latency,) * 4, True, 1.0) for latency in (0.5, 0.4, 0.6)])
    entry = {
        "kind": "population", "arm": "alora", "population": 150, "slots": 100, "distinct": 36, "target_ms": 1000.0,
        "reason": "not exercised: 36 distinct adapters, 100 slots", "probe": None,
    }  # fmt: skip
    assert "| - | - | not exercised: 36 distinct adapters, 100 slots |" in open_loop_section([entry])
    told = open_loop_section([entry | {"distinct": 120, "reason": None, "probe": probe}])
    assert "not exercised" not in told
    assert "| 120 | 2.00 | 500 [400, 600] | 500 [400, 600] |" in told
    assert "in 3 rounds by turns" in told
    one_behind = by_round([Probe(2.0, (0.5,), True, 1.0), Probe(2.0, (0.5,), True, 9.0, last=1.0)])
    assert "fell behind |" in open_loop_section([entry | {"reason": None, "probe": one_behind}])
    given_up = by_round([Probe(2.0, (0.5,), True, 1.0), Probe(2.0, (0.5,), False, 1.0)])
    assert "| >= 500 [500, 500] |" in open_loop_section([entry | {"reason": None, "probe": given_up}])


def test_the_report_tells_what_the_run_took():
    assert " 9 min 6 s by the wall" in spent_text({"spent": {"wall_seconds": 546.2, "cpu_seconds": 479.6}})
    assert " 8 min 0 s of CPU time" in spent_text({"spent": {"wall_seconds": 546.2, "cpu_seconds": 479.6}})
    assert spent_text({}) == ""
