"""An engine that is played, and an open loop on it."""

from types import SimpleNamespace
from typing import Any

import torch

from alora.bench.serving.offer import Probe, probe
from alora.bench.serving.records import Ask
from alora.bench.serving.reference import References
from alora.config.schema import BenchSettings, ServingBenchSettings
from tests.unit.bench.serving_cases import LABELS, right


def settings(populations=(4, 1000), batteries=9, fires=(2, 4)) -> BenchSettings:
    serving = ServingBenchSettings(populations=list(populations), batteries=batteries, fires=list(fires))
    return BenchSettings(serving=serving)


class Engine:
    """Answers two requests a step, as every policy should; ``wrong``: the places that answer the other way round,
    ``crowded``: but only where more requests than these are open. ``slow``: one conversation that takes so many steps.
    """

    def __init__(self, wrong: frozenset[int] = frozenset(), crowded: int = 0, slow: tuple[int, int] = (-1, 0)) -> None:
        self.clock, self.wrong, self.open, self.sent = 0.0, wrong, [], 0
        self.crowded, self.slow, self.held = crowded, slow, {}
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
        crowd = len(self.open) > self.crowded
        done = [one for one in self.open if not self._waits(*one)][:2]
        self.open = [one for one in self.open if one not in done]
        return [self._output(name, ask, crowd) for name, ask in done]

    def _waits(self, name: str, ask: Ask) -> bool:
        """Beside the others, as if its adapter came from a slow disk."""
        self.held[name] = self.held.get(name, 0) + 1
        return ask.prompt_ids[0] == self.slow[0] and self.held[name] <= self.slow[1]

    def _output(self, name: str, ask: Ask, crowd: bool) -> Any:
        scores = right(ask.place)
        scores = scores[::-1] if ask.place in self.wrong and crowd else scores
        tops = {label: SimpleNamespace(logprob=score) for label, score in zip(LABELS, scores, strict=True)}
        made = SimpleNamespace(token_ids=(11,), logprobs=[tops])
        return SimpleNamespace(
            request_id=name, finished=True, outputs=[made], num_cached_tokens=0, prompt_token_ids=list(ask.prompt_ids)
        )


def bench_of(engine: Engine, given: BenchSettings) -> Any:
    return SimpleNamespace(
        settings=given, engine=engine, clock=engine, verdicts=[], bar=SimpleNamespace(update=lambda: None),
        conversation=lambda tokens, seed: (seed, 7), tolerance=1e-3, in_time=lambda: None,
    )  # fmt: skip


ARM: Any = SimpleNamespace(
    name="alora", asks=lambda prefix, places: [Ask((*prefix, 9), "alora", place, LABELS) for place in places]
)


def loop(engine: Engine, rate: float, given: BenchSettings, population: int) -> tuple[Any, Probe]:
    bench = bench_of(engine, given)
    return bench, probe(bench, ARM, rate, population, "population")


def references(bench: Any, moved: float = 0.5) -> References:
    """What is asked about, answered as it should be."""
    asked = [(v.prefix_ids, v.place) for v in bench.verdicts if v.asked]
    known = {key: tuple(torch.softmax(torch.tensor(right(key[1])), 0).tolist()) for key in asked}
    return References(known, {}, {}, {"alora": moved})
