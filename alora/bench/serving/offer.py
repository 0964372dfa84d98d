"""One rate that is offered: conversations arrive whether or not the last one is answered.

Latency counts from the moment of arrival, so a server that falls behind cannot hide it by accepting later; nor may it
because the arrivals end before its queue has grown to the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alora.bench.serving.arms import VllmArm
from alora.bench.serving.context import Bench
from alora.bench.serving.draws import Arrival
from alora.bench.serving.engine import read_answer
from alora.bench.serving.plan import offered
from alora.bench.serving.records import Ask, Verdict, ms
from alora.bench.serving.statistics import figures, summary

HOPELESS = 5  # times the target: a probe whose latencies have come this far is given up, once it must fail
KEEPS_UP = 0.9  # of the offered rate that must be served: the queue of a few conversations never stands quite still
KEPT = 4  # conversations of every tried rate whose verdicts are held to the arm's reference


@dataclass(frozen=True)
class Probe:
    """One rate that was tried. ``latencies`` in seconds, one per conversation that was answered before giving up;
    ``last``: when the last conversation arrived.
    """

    rate: float
    latencies: tuple[float, ...]
    complete: bool
    seconds: float
    last: float = math.inf

    @property
    def p95(self) -> float:
        """Of the conversations, all verdicts back."""
        import numpy as np

        return figures(np.asarray(self.latencies))["p95"]

    @property
    def kept_up(self) -> bool:
        """Whether conversations were answered about as fast as they came. Any rate is offered for a short while only:
        beyond what the server can do the queue grows, but from a few conversations not always as far as the target.
        """
        return not self.rate or KEEPS_UP * (self.seconds - min(self.latencies)) <= self.last

    def holds(self, target: float) -> bool:
        """Whether the rate was carried to its end below the target, by a server that kept up with it."""
        return self.complete and self.kept_up and self.p95 < target

    def sample(self) -> dict[str, Any]:
        """Plain form for ``bench.json``."""
        return {
            "rate": self.rate, "complete": self.complete, "kept_up": self.kept_up, "seconds": round(self.seconds, 3),
            "ms": [ms(latency) for latency in self.latencies],
            "figures": _in_ms(summary([self.latencies])),
        }  # fmt: skip


def probe(bench: Bench, arm: VllmArm, rate: float, population: int, kind: str = "rate") -> Probe:
    """Offer ``rate`` conversations a second on an empty cache; rate 0 offers the same ones by one, each alone."""
    engine = bench.engine
    assert engine is not None
    bench.in_time()
    engine.forget()
    coming = offered(bench.settings, rate or 1.0, population)
    # Prompts are made before the clock runs: tokenising is the client's work.
    prefixes, asks = prompts(bench, arm, coming)
    drive = _Drive(bench, coming, asks, rate)
    found = drive.run()
    held = kept(len(coming))
    for number, ask, output in drive.answered:
        scores = read_answer(ask, 0.0, 0.0, output).scores
        bench.verdicts.append(Verdict(arm.name, kind, population, prefixes[number], ask.place, scores, number in held))
    return found


def prompts(bench: Bench, arm: VllmArm, coming: Sequence[Arrival]) -> tuple[list[tuple[int, ...]], list[list[Ask]]]:
    """The prefix of every conversation, and what is asked about it."""
    length = bench.settings.serving.open_loop_length
    prefixes = [bench.conversation(length, seed=100 + one.conversation) for one in coming]
    return prefixes, [arm.asks(prefix, one.places) for prefix, one in zip(prefixes, coming, strict=True)]


def kept(count: int) -> set[int]:
    """Which of ``count`` conversations have their verdicts held to the reference, spread over the whole rate."""
    some = min(KEPT, count)
    return {number * count // some for number in range(some)}


class _Drive:
    """Conversations on their way through the engine; ``answered`` keeps vLLM's answers, to be read off the clock."""

    def __init__(self, bench: Bench, coming: Sequence[Arrival], asks: Sequence[Sequence[Ask]], rate: float) -> None:
        assert bench.engine is not None
        self._bench, self._engine, self._clock = bench, bench.engine, bench.clock
        self._coming, self._asks, self._rate = coming, asks, rate
        self._waiting = list(range(len(coming)))
        self._running: dict[int, tuple[float, set[str]]] = {}  # from a conversation to its arrival and open requests
        self._sent: dict[str, tuple[int, Ask]] = {}
        self._latencies: list[float] = []
        self.answered: list[tuple[int, Ask, Any]] = []

    def run(self) -> Probe:
        """Send every conversation when it arrives, until all are answered or the rate has failed beyond hope."""
        start = self._clock.now()
        while self._waiting or self._running:
            self._accept(start)
            if not self._running:
                self._clock.wait_until(start + self._coming[self._waiting[0]].at)
                continue
            outputs = self._engine.step()
            now = self._clock.now() - start
            self._take(outputs, now)
            self._bench.in_time()  # what is under way then is left where it is
            given_up = (*self._latencies, *(now - at for at, _ in self._running.values()))
            if self._hopeless(given_up):
                while self._engine.busy:  # let what was sent run out; the clock no longer counts
                    self._engine.step()
                return Probe(self._rate, given_up, False, now, self._coming[-1].at)
        return Probe(self._rate, tuple(self._latencies), True, self._clock.now() - start, self._coming[-1].at)

    def _hopeless(self, latencies: Sequence[float]) -> bool:
        """Whether so many have waited beyond the target that the p95 of all cannot hold it, and one beyond hope; or at
        rate 0, where no later one waits for them, that alone.
        """
        target, count = self._bench.settings.serving.target_ms / 1000, len(self._coming)
        late = sum(latency >= target for latency in latencies)
        beyond = not self._rate or max(latencies, default=0.0) > HOPELESS * target
        return beyond and late >= count - int(0.95 * (count - 1))

    def _accept(self, start: float) -> None:
        """Send what has arrived; at rate 0 the next one, when the last is answered."""
        while self._waiting:
            number, now = self._waiting[0], self._clock.now()
            at = self._coming[number].at if self._rate else now - start
            early = self._rate and now < start + at  # summed as where it is waited for, so that it ends
            if early or (not self._rate and self._running):
                return
            self._waiting.pop(0)
            names = {self._engine.send(ask): ask for ask in self._asks[number]}
            self._sent |= {name: (number, ask) for name, ask in names.items()}
            self._running[number] = (at, set(names))

    def _take(self, outputs: Sequence[Any], now: float) -> None:
        for output in outputs:
            if not output.finished:
                continue
            number, ask = self._sent.pop(output.request_id)
            at, names = self._running[number]
            names.discard(output.request_id)
            self.answered.append((number, ask, output))
            if not names:
                del self._running[number]
                self._latencies.append(now - at)
                self._bench.bar.update()


def _in_ms(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: ms(value) for key, value in entry.items()} for name, entry in found.items()}
