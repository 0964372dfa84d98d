"""``open_loop``: conversations arrive by a Poisson process and fire policies of a population.

Two questions: the highest rate whose p95 stays below the target, and what happens when the population outgrows the
slots. The first is answered only between a rate that held and one that did not; the second is asked only where more
adapters are fired than there are slots. What was not found is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from alora.bench.serving.arms import VllmArm
from alora.bench.serving.context import Bench
from alora.bench.serving.draws import distinct_adapters, popular_last
from alora.bench.serving.marks import rate_bounds
from alora.bench.serving.offer import Probe, probe, prompts
from alora.bench.serving.plan import offered, planned_arrivals, population_rounds

WIDEN = 4  # so that few probes find a rate that holds and one that does not
TOGETHER = 4  # conversations that are answered at once before the clock starts


def run_open_loop(bench: Bench, found: list[dict[str, Any]]) -> None:
    """Search the best rate of each arm on the engine, then lay a growing population on aLoRA and LoRA.

    What is found is put into ``found`` at once, so that a run that is stopped keeps it.
    """
    serving = bench.settings.serving
    assert bench.engine is not None
    target = serving.target_ms / 1000
    population = min(serving.populations)
    arms = {name: arm for name in serving.open_loop_arms if isinstance(arm := bench.arms.get(name), VllmArm)}
    bench.bar.reset(planned_arrivals(bench.settings, list(arms)))
    for name, arm in arms.items():
        bench.bar.set_description(f"open loop, {name}")
        bench.ready([name], list(range(population)))
        _rehearse(bench, arm, population)
        entry = {
            "kind": "rate", "arm": name, "population": population, "target_ms": serving.target_ms, "probes": [],
        }  # fmt: skip
        probes = search(partial(_tried, bench, arm, entry, found), target, serving.probes)
        if name != "base":
            _cliff(bench, arm, cliff_rate(entry["best_rate"], probes[0].holds(target)), found)


def _tried(bench: Bench, arm: VllmArm, entry: dict[str, Any], found: list[dict[str, Any]], rate: float) -> Probe:
    """Offer a rate and note it at once: a run that stops later has this much of an answer."""
    one = probe(bench, arm, rate, entry["population"])
    if not entry["probes"]:
        found.append(entry)
    entry["probes"].append(one.sample())
    entry["best_rate"], entry["failed_rate"] = rate_bounds(entry)
    return one


def cliff_rate(best: float | None, alone: bool) -> float | None:
    """At which rate populations are compared: half of the best one; where none held, one conversation after another;
    None where not even that did.
    """
    return best / 2 if best is not None else 0.0 if alone else None


def _cliff(bench: Bench, arm: VllmArm, rate: float | None, found: list[dict[str, Any]]) -> None:
    """The same load on each population, in turn, some rounds; one fits the slots, to compare with."""
    serving, engine = bench.settings.serving, bench.engine
    assert engine is not None
    populations = sorted(serving.populations)
    fired = {many: offered(bench.settings, 1.0, many) for many in populations}
    distinct = {many: distinct_adapters(fired[many]) for many in populations}
    reasons = {many: unexercised(distinct[many], engine.options.slots, rate) for many in populations[1:]}
    run = [many for many in populations if rate is not None and reasons.get(many) is None and None in reasons.values()]
    probes: dict[int, list[Probe]] = {many: [] for many in run}
    try:
        for number in range(population_rounds(bench.settings)):
            for many in run if number % 2 == 0 else reversed(run):
                bench.bar.set_description(f"open loop, {arm.name}, population {many}")
                arm.load(popular_last(fired[many]))  # who is loaded last stands in a slot
                probes[many].append(probe(bench, arm, rate or 0.0, many, "population"))
    finally:  # stopped or not, the rounds in which all had their turn
        whole = min(map(len, probes.values()), default=0)
        for many in populations:
            entry = {
                "kind": "population", "arm": arm.name, "population": many, "slots": engine.options.slots,
                "distinct": distinct[many], "target_ms": serving.target_ms, "reason": reasons.get(many),
                "probe": by_round(probes[many][:whole]) if many in run and whole else None,
            }  # fmt: skip
            if entry["probe"] is not None or entry["reason"] is not None:
                found.append(entry)


def by_round(probes: Sequence[Probe]) -> dict[str, Any]:
    """Rounds of one load as one, in plain form: of each figure the median of the rounds, and the least and the most.

    Every round offers the same conversations, so more of them say nothing new about the load, but how much the machine
    adds to it.
    """
    rounds = [one.sample() for one in probes]
    told = [one["figures"] for one in rounds if one["figures"]]
    values = {name: sorted(figure[name]["value"] for figure in told) for name in (told[0] if told else ())}
    figure = {name: {"value": median(of), "low": of[0], "high": of[-1]} for name, of in values.items()}
    return {
        "rate": probes[0].rate, "complete": all(one.complete for one in probes),
        "kept_up": all(one.kept_up for one in probes), "rounds": rounds, "figures": figure,
    }  # fmt: skip


def unexercised(distinct: int, slots: int, rate: float | None) -> str | None:
    """Why a population would show nothing of what happens beyond the slots; None where it would."""
    if distinct <= slots:
        return f"not exercised: {distinct} distinct adapters, {slots} slots"
    return "not exercised: no rate held, not even one after another" if rate is None else None


def search(probe: Callable[[float], Probe], target: float, probes: int) -> list[Probe]:
    """Find the edge: start from one conversation at a time, widen until the answer changes, then bisect."""
    alone = probe(0.0)
    found = [alone]
    if not alone.latencies or alone.p95 >= target:
        return found  # not even one conversation at a time is answered in time
    rate, good, bad = 1.0 / alone.p95, 0.0, None
    for _ in range(probes):
        one = probe(rate)
        found.append(one)
        if one.holds(target):
            good = rate
        else:
            bad = rate
        if bad is None:
            rate *= WIDEN
        elif good == 0.0:
            rate /= WIDEN
        else:
            rate = (good + bad) / 2
    return found


def _rehearse(bench: Bench, arm: VllmArm, population: int) -> None:
    """One conversation, then some at once, untimed: no batch of these sizes is the first one of a rate."""
    engine = bench.engine
    assert engine is not None
    _, asks = prompts(bench, arm, offered(bench.settings, 1.0, population)[:TOGETHER])
    for some in (asks[:1], asks):
        engine.forget()
        engine.answer([ask for one in some for ask in one])
