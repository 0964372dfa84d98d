"""``open_loop``: conversations arrive whether or not the last one is answered, and fire policies of a population.

Latency counts from the moment of arrival, so a server that falls behind cannot hide it by accepting later. Two
questions: the highest rate whose p95 stays below the target, and what happens when the population outgrows the slots.
The first is answered only between a rate that held and one that did not; the second is asked only where more adapters
are fired than there are slots. What was not found is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from alora.bench.serving.arms import VllmArm
from alora.bench.serving.context import Bench
from alora.bench.serving.draws import Arrival, arrivals, distinct_adapters
from alora.bench.serving.marks import rate_bounds
from alora.bench.serving.plan import planned_arrivals
from alora.bench.serving.records import ms
from alora.bench.serving.statistics import figures, summary

WIDEN = 4  # so that few probes find a rate that holds and one that does not
HOPELESS = 5  # times the target: a probe whose latencies have come this far is given up as failed


@dataclass(frozen=True)
class Probe:
    """One rate that was tried. ``latencies`` in seconds, one per conversation that was answered before giving up."""

    rate: float
    latencies: tuple[float, ...]
    complete: bool
    seconds: float

    @property
    def p95(self) -> float:
        """Of the conversations, all verdicts back."""
        import numpy as np

        return figures(np.asarray(self.latencies))["p95"]

    def holds(self, target: float) -> bool:
        """Whether the rate was carried to its end below the target."""
        return self.complete and self.p95 < target

    def sample(self) -> dict[str, Any]:
        """Plain form for ``bench.json``."""
        return {
            "rate": self.rate, "complete": self.complete, "seconds": round(self.seconds, 3),
            "ms": [ms(latency) for latency in self.latencies],
            "figures": _in_ms(summary([self.latencies])),
        }  # fmt: skip


def run_open_loop(bench: Bench, found: list[dict[str, Any]]) -> None:
    """Search the best rate of each arm on the engine, then lay a growing population on aLoRA and LoRA.

    What is found is put into ``found`` at once, so that an interrupted run keeps it.
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
        probes = search(lambda rate, arm=arm: probe(bench, arm, rate, population), target, serving.probes)
        entry: dict[str, Any] = {
            "kind": "rate", "arm": name, "population": population, "target_ms": serving.target_ms,
            "probes": [one.sample() for one in probes],
        }  # fmt: skip
        entry["best_rate"], entry["failed_rate"] = rate_bounds(entry)
        found.append(entry)
        if name != "base":
            _cliff(bench, arm, entry["best_rate"], found)


def _cliff(bench: Bench, arm: VllmArm, best: float | None, found: list[dict[str, Any]]) -> None:
    """The same load on each population, at half the best rate; first the one that fits the slots, to compare with."""
    serving, engine = bench.settings.serving, bench.engine
    assert engine is not None
    assert arm.kind is not None
    populations = sorted(serving.populations)
    distinct = {many: distinct_adapters(_offered(bench, 1.0, many)) for many in populations}
    reasons = {many: unexercised(distinct[many], engine.options.slots, best) for many in populations[1:]}
    for many in populations:
        entry: dict[str, Any] = {
            "kind": "population", "arm": arm.name, "population": many, "slots": engine.options.slots,
            "distinct": distinct[many], "target_ms": serving.target_ms, "reason": reasons.get(many), "probe": None,
        }  # fmt: skip
        if best is not None and entry["reason"] is None and None in reasons.values():
            bench.bar.set_description(f"open loop, {arm.name}, population {many}")
            engine.load(arm.kind, range(many))  # into memory; those that fit, into slots
            entry["probe"] = probe(bench, arm, best / 2, many).sample()
        if entry["probe"] is not None or entry["reason"] is not None:
            found.append(entry)


def unexercised(distinct: int, slots: int, best: float | None) -> str | None:
    """Why a population would show nothing of what happens beyond the slots; None where it would."""
    if distinct <= slots:
        return f"not exercised: {distinct} distinct adapters, {slots} slots"
    return "not exercised: no rate held" if best is None else None


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


def probe(bench: Bench, arm: VllmArm, rate: float, population: int) -> Probe:
    """Offer ``rate`` conversations a second on an empty cache; rate 0 offers the same ones by one, each alone."""
    engine = bench.engine
    assert engine is not None
    engine.forget()
    return _drive(bench, arm, _offered(bench, rate or 1.0, population), rate)


def _offered(bench: Bench, rate: float, population: int) -> list[Arrival]:
    """The conversations of one tried rate: the same at every rate, for every arm."""
    serving = bench.settings.serving
    return arrivals(serving.batteries, rate, population, serving.fires, serving.zipf, bench.settings.seed)


def _drive(bench: Bench, arm: VllmArm, offered: Sequence[Arrival], rate: float) -> Probe:
    engine, clock = bench.engine, bench.clock
    assert engine is not None
    length, limit = bench.settings.serving.open_loop_length, HOPELESS * bench.settings.serving.target_ms / 1000
    # Prompts are made before the clock runs: tokenising is the client's work.
    asks = [arm.asks(bench.conversation(length, seed=100 + one.conversation), one.places) for one in offered]
    start = clock.now()
    waiting, running, owner, latencies = list(range(len(offered))), {}, {}, []
    while waiting or running:
        while waiting and (now := clock.now() - start) >= (offered[waiting[0]].at if rate else 0.0):
            if not rate and running:
                break  # one at a time
            number = waiting.pop(0)
            names = {engine.send(ask) for ask in asks[number]}
            running[number] = (offered[number].at if rate else now, names)
            owner |= dict.fromkeys(names, number)
        if not running:
            clock.wait_until(start + offered[waiting[0]].at)
            continue
        outputs = engine.step()
        now = clock.now() - start
        for output in outputs:
            if output.finished:
                number = owner.pop(output.request_id)
                at, names = running[number]
                names.discard(output.request_id)
                if not names:
                    del running[number]
                    latencies.append(now - at)
                    bench.bar.update()
        if rate and any(now - at > limit for at, _ in running.values()):
            while engine.busy:  # let what was sent run out; the clock no longer counts
                engine.step()
            return Probe(rate, (*latencies, *(now - at for at, _ in running.values())), False, now)
    return Probe(rate, tuple(latencies), True, clock.now() - start)


def _in_ms(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: ms(value) for key, value in entry.items()} for name, entry in found.items()}
