"""Draws, statistics, the search of the best rate, and the page."""

import json

import numpy as np
import pytest

from alora.bench.serving.draws import FIRST_CONTENT, arrivals, token_ids, zipf_weights
from alora.bench.serving.offer import Probe
from alora.bench.serving.open_loop import search
from alora.bench.serving.page import html_page
from alora.bench.serving.plan import grid_cells
from alora.bench.serving.records import Cell
from alora.bench.serving.report import faults
from alora.bench.serving.rounds import Turn, rotating_part, run_rounds
from alora.bench.serving.statistics import ratio_of_medians, summary
from alora.config.schema import ServingBenchSettings
from tests.unit.bench.serving_cases import burst


def test_a_longer_conversation_begins_with_a_shorter_one_and_holds_nothing_reserved():
    ids = token_ids(50, 400, seed=3, banned=frozenset({30}))
    assert token_ids(50, 100, seed=3, banned=frozenset({30})) == ids[:100]
    assert min(ids) >= FIRST_CONTENT
    assert 30 not in ids
    assert 30 in token_ids(50, 400, seed=3)
    assert ids != token_ids(50, 400, seed=4, banned=frozenset({30}))


def test_arrivals_are_poisson_distinct_and_the_same_at_every_rate():
    slow, fast = (arrivals(4000, rate, 40, (5, 20), 1.0, seed=1) for rate in (2.0, 8.0))
    assert [one.places for one in slow] == [one.places for one in fast]
    assert slow[-1].at == pytest.approx(4 * fast[-1].at)
    gaps = np.diff([one.at for one in fast])
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as an exponential's, and no even spacing's
    assert all(len(set(one.places)) == len(one.places) and 5 <= len(one.places) <= 20 for one in slow)


def test_popularity_falls_as_zipf_says():
    weights = zipf_weights(100, 1.0)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] / weights[9] == pytest.approx(10.0)
    assert np.allclose(zipf_weights(10, 0.0), 0.1)
    counts = np.bincount([p for one in arrivals(2000, 1.0, 100, (1, 1), 1.0, 0) for p in one.places], minlength=100)
    assert counts[0] > 5 * counts[20]


def test_summary_resamples_whole_rounds():
    """Twenty samples of a round that share its mood are not twenty measurements."""
    moods = [[value] * 20 for value in (1.0, 2.0, 3.0, 4.0)]
    found = summary(moods)
    assert found["mean"]["value"] == 2.5
    assert found["mean"]["low"] < 1.8
    assert found["mean"]["high"] > 3.2
    alone = summary([[value for mood in moods for value in mood]])
    assert alone["mean"]["high"] - alone["mean"]["low"] < 0.7
    assert summary([]) == {}


def test_percentiles_are_those_of_all_samples():
    found = summary([list(np.arange(0, 50)), list(np.arange(50, 101))])
    assert (found["p50"]["value"], found["p95"]["value"], found["p99"]["value"]) == (50, 95, 99)


def test_ratio_of_medians_knows_noise_from_a_difference():
    quiet = [1.0, 1.01, 0.99, 1.0, 1.02]
    assert ratio_of_medians(quiet, list(reversed(quiet))).contains(1.0)
    assert not ratio_of_medians([2 * value for value in quiet], quiet).contains(1.0)


def test_every_adapter_has_its_turn():
    places = list(range(10))
    seen = [rotating_part(places, 4, number) for number in range(3)]
    assert {place for part in seen for place in part} == set(places)
    assert all(len(part) == 4 for part in seen)
    assert rotating_part(places, 99, 2) != []
    assert sorted(rotating_part(places, 99, 2)) == places


def test_every_round_runs_every_arm_once_in_an_order_of_its_own():
    cell = Cell("grid", {"length": 32, "adapters": 3})
    turns = [Turn(name, lambda number: [burst()]) for name in "abcdefgh"]
    told = []
    run_rounds(turns, [cell], rounds=5, seed=0, done=told.append)
    orders = [[t.arm for t in cell.trials if t.round == number] for number in range(5)]
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert told[8:] == [trial.burst for trial in cell.trials]  # behind the rehearsal


def test_an_arm_that_leaves_a_stage_out_is_not_measured():
    stages = [Cell("warm", {"stage": name}) for name in ("read", "warm")]
    with pytest.raises(ValueError, match="shorter"):
        run_rounds([Turn("a", lambda number: [burst()])], stages, 1, 0, lambda trial: None)


def test_cells_of_a_cross_are_one_row_and_one_column():
    serving = ServingBenchSettings(lengths=[1000, 2000], adapters=[1, 10], cross=True)
    assert grid_cells(serving) == [(1000, 1), (1000, 10), (2000, 10)]
    serving.cross = False
    assert len(grid_cells(serving)) == 4


@pytest.mark.parametrize("capacity", [0.4, 3.0, 7.0])
def test_the_search_closes_in_on_the_edge(capacity):
    def server(rate):
        return Probe(rate, (0.5,) * 20 if rate <= capacity else (9.0,) * 20, True, 1.0)

    probes = search(server, target=1.0, probes=10)
    best = max(probe.rate for probe in probes if probe.holds(1.0))
    assert best <= capacity
    assert best > 0.8 * capacity


def test_the_search_gives_up_where_one_alone_is_too_slow():
    assert len(search(lambda rate: Probe(rate, (9.0,) * 4, True, 1.0), 1.0, 10)) == 1


def test_a_probe_that_was_given_up_does_not_hold():
    assert not Probe(1.0, (0.1,) * 20, False, 1.0).holds(1.0)


def run_of(seconds, arm="alora", **changes):
    samples = [{"arm": arm, "ms": value} for value in seconds]
    figures = {"battery_ms": {"p50": {"value": float(np.median(seconds))}}}
    cell = {"workload": "grid", "at": {"length": 1}, "arms": {arm: figures}, "samples": samples, "ratios": []}
    settings = {
        "serving": {"lengths": [1]},
        "rank": 8,
        "seed": 0,
        "threads": 1,
        "battery": None,
        "rounds": len(samples),
    }
    run = {
        "benchmark": "serving", "settings": settings, "cells": [cell], "environment": {"torch": "2", "command": "a"},
        "base": {"name": "27m"}, "adapter": {"rank": 8}, "prompt": {}, "dtype": "float32", "clock": "wall", "ours": arm,
        "engine": {"name": "vllm"}, "device": "cpu",
    }  # fmt: skip
    return run | changes


def test_wrong_verdicts_are_a_fault_and_other_prompts_are_not():
    run = run_of([1.0])
    run["cells"][0]["ratios"] = [
        {"baseline": "base", "refused": ["the prompts differ: ours [(1, 1)]"], "ratio": None},
        {"baseline": "lora", "refused": ["lora: 2 of 3 verdicts differ from PEFT's LoRA"], "ratio": None},
    ]
    assert len(faults(run)) == 1
    assert "verdicts differ" in faults(run)[0]
    assert json.dumps(faults(run))


def test_a_part_of_the_report_that_is_empty_does_not_break_the_page():
    page = html_page(run_of([1.0]), "# Title\n\nText\n\n\n\n## open_loop\n\n- one", [])
    assert "<h2>open_loop</h2>" in page
    assert "<p></p>" not in page


def test_the_page_is_self_contained_and_escapes_what_it_is_given(tmp_path):
    plot = tmp_path / "a.png"
    plot.write_bytes(b"\x89PNG")
    report = "# Title\n\nText with `code`, <b> and **bold**.\n\n| a | b |\n| --- | --- |\n| 1 | **2** |\n\n- one"
    page = html_page(run_of([1.0]), report, [plot])
    assert "data:image/png;base64," in page
    assert "<code>code</code>, &lt;b&gt; and <strong>bold</strong>" in page
    assert "<td>1</td><td><strong>2</strong></td>" in page
    assert "http" not in page
    assert "<script" not in page
