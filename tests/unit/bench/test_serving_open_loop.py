"""The open loop: whose adapters are needed, what is sent when, and that its verdicts are held to a reference."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from alora.bench.serving.draws import arrivals, distinct_adapters, only_fired
from alora.bench.serving.evaluate import judge_open_loop
from alora.bench.serving.open_loop import KEPT, Probe, kept, probe
from alora.bench.serving.plan import offered, open_loop_adapters
from alora.bench.serving.plots import _open_loop as drawn
from alora.bench.serving.records import Ask, Verdict
from alora.bench.serving.reference import References
from alora.bench.serving.report import _agreement, _open_loop, _withheld, faults
from alora.config.schema import BenchSettings, ServingBenchSettings
from tests.unit.bench.serving_cases import LABELS, right


def settings(populations=(4, 1000), batteries=9, fires=(2, 4)) -> BenchSettings:
    serving = ServingBenchSettings(populations=list(populations), batteries=batteries, fires=list(fires))
    return BenchSettings(serving=serving)


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


def test_a_population_that_fits_keeps_all_of_its_adapters():
    few = settings((50,), batteries=1, fires=(1, 1))
    assert open_loop_adapters(few) == 50
    assert only_fired(offered(few, 1.0, 50), 50) == arrivals(1, 1.0, 50, [1, 1], 1.0, 0)


class Engine:
    """Answers two requests a step, as every policy should; ``wrong``: the places that answer the other way round."""

    def __init__(self, wrong: frozenset[int] = frozenset()) -> None:
        self.clock, self.wrong, self.open, self.sent = 0.0, wrong, [], 0
        self.most = 0

    def now(self) -> float:
        return self.clock

    def wait_until(self, moment: float) -> None:
        self.clock = max(self.clock, moment)

    def forget(self) -> None:
        assert not self.open

    def send(self, ask: Ask) -> str:
        self.sent += 1
        self.open.append((str(self.sent), ask))
        self.most = max(self.most, len({ask.prompt_ids[:1] for _, ask in self.open}))
        return str(self.sent)

    @property
    def busy(self) -> bool:
        return bool(self.open)

    def step(self) -> list[Any]:
        self.clock += 0.1
        done, self.open = self.open[:2], self.open[2:]
        return [self._output(name, ask) for name, ask in done]

    def _output(self, name: str, ask: Ask) -> Any:
        scores = right(ask.place)
        scores = scores[::-1] if ask.place in self.wrong else scores
        tops = {label: SimpleNamespace(logprob=score) for label, score in zip(LABELS, scores, strict=True)}
        made = SimpleNamespace(token_ids=(11,), logprobs=[tops])
        return SimpleNamespace(
            request_id=name, finished=True, outputs=[made], num_cached_tokens=0, prompt_token_ids=list(ask.prompt_ids)
        )


def loop(engine: Engine, rate: float, given: BenchSettings, population: int) -> tuple[Any, Probe]:
    bench: Any = SimpleNamespace(
        settings=given, engine=engine, clock=engine, verdicts=[], bar=SimpleNamespace(update=lambda: None),
        conversation=lambda tokens, seed: (seed, 7), tolerance=1e-3,
    )  # fmt: skip
    arm = SimpleNamespace(
        name="alora", asks=lambda prefix, places: [Ask((*prefix, 9), "alora", place, LABELS) for place in places]
    )
    return bench, probe(bench, cast(Any, arm), rate, population)


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
    known = {(v.prefix_ids, v.place): tuple(torch.softmax(torch.tensor(right(v.place)), 0).tolist())
             for v in bench.verdicts}  # fmt: skip
    bench.references = References(known, {}, {}, {"alora": moved})
    entry = {
        "kind": "population", "arm": "alora", "population": 1000, "slots": 4, "distinct": 20, "target_ms": 1000.0,
        "reason": None, "probe": found.sample(),
    }  # fmt: skip
    judge_open_loop(bench, [entry])
    return {"cells": [], "open_loop": [entry], "tolerance": 1e-3}


def test_verdicts_of_the_rarest_policies_are_kept_from_the_whole_rate():
    bench, _ = loop(Engine(), 1.0, settings(), 1000)
    rarest = {(100 + one.conversation, 7): max(one.places) for one in offered(settings(), 1.0, 1000)}
    assert {(v.prefix_ids, v.place) for v in bench.verdicts} == {
        (prefix, place) for number, (prefix, place) in enumerate(rarest.items()) if number in kept(9)
    }
    assert kept(9) == {0, 2, 4, 6}
    assert kept(2) == {0, 1}
    assert len(bench.verdicts) == KEPT


def test_right_verdicts_of_the_open_loop_stand_beside_its_rate():
    results = judged()
    assert faults(results) == []
    assert "| alora | PEFT's aLoRA | 4 | 4 | 0.0e+00 |" in _agreement(results)


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
    rate = results["open_loop"][0] | {"kind": "rate", "probes": [results["open_loop"][0]["probe"]]}
    assert "| alora | 1000 | withheld |" in _open_loop([rate])


def test_a_population_that_was_not_run_needs_no_verdict():
    bench: Any = SimpleNamespace(verdicts=[Verdict("alora", 4, (7,), 0, (0.0, 0.0))], tolerance=1e-3)
    bench.references = References({((7,), 0): (0.5, 0.5)}, {}, {}, {})
    entry: dict[str, Any] = {"kind": "population", "arm": "alora", "population": 1000, "probe": None}
    judge_open_loop(bench, [entry])
    assert (entry["agreement"], entry["refused"]) == ([], [])


def test_the_plot_shows_every_loaded_rate_and_marks_those_given_up():
    figure = pytest.importorskip("matplotlib.figure")
    probes = [Probe(0.0, (0.5,) * 4, True, 1.0), Probe(4.0, (9.0,) * 4, False, 1.0), Probe(1.0, (0.7,) * 4, True, 1.0)]
    entry = {"kind": "rate", "arm": "alora", "population": 4, "target_ms": 1000.0}
    axes = figure.Figure().subplots()
    assert drawn(axes, [entry | {"probes": [one.sample() for one in probes]}])
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1.0, 4.0], [4.0]]
    assert not drawn(figure.Figure().subplots(), [entry | {"probes": [probes[0].sample()]}])
