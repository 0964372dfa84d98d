"""An engine that is played, and an open loop on it."""

from types import SimpleNamespace
from typing import Any

from alora.config.schema import BenchSettings, ServingBenchSettings
from alora.lab.bench.open_loop import Generator, Load
from alora.lab.bench.record import LoadRecord, OfferedRate
from alora.lab.bench.reference import References, of
from alora.lab.bench.systems import Request
from alora.lab.bench.trials import Piece, Result
from tests.unit.lab.bench.cases import LABELS, right


def settings(populations=(4, 1000), conversations=9, target_ms=4000.0) -> BenchSettings:
    serving = ServingBenchSettings(populations=list(populations), conversations=conversations, target_ms=target_ms)
    return BenchSettings(serving=serving)


class Engine:
    """Answers two requests a step, as every policy should; ``wrong``: the policies that answer the other way round,
    ``crowded``: but only where more requests than these are open.
    """

    def __init__(self, wrong: frozenset[int] = frozenset(), crowded: int = 0) -> None:
        self.clock, self.wrong, self.open, self.sent = 0.0, wrong, [], 0
        self.crowded = crowded
        self.most, self.slots, self.loaded = 0, 4, []

    def now(self) -> float:
        return self.clock

    def wait_until(self, moment: float) -> None:
        self.clock = max(self.clock, moment)

    def forget(self) -> None:
        assert not self.open

    def load(self, system: str, policies: Any) -> None:
        self.loaded.append(len(policies))

    def answer(self, requests: Any) -> None:
        """A rehearsal."""

    def send(self, request: Request) -> str:
        self.sent += 1
        self.open.append((str(self.sent), request))
        self.most = max(self.most, len({request.prompt_ids[:1] for _, request in self.open}))
        return str(self.sent)

    @property
    def busy(self) -> bool:
        return bool(self.open)

    def step(self) -> list[Any]:
        self.clock += 0.1
        crowd = len(self.open) > self.crowded
        done, self.open = self.open[:2], self.open[2:]
        return [self._output(name, request, crowd) for name, request in done]

    def _output(self, name: str, request: Request, crowd: bool) -> Any:
        scores = right(request.policy)
        scores = scores[::-1] if request.policy in self.wrong and crowd else scores
        tops = {label: SimpleNamespace(logprob=score) for label, score in zip(LABELS, scores, strict=True)}
        made = SimpleNamespace(token_ids=(11,), logprobs=[tops])
        return SimpleNamespace(
            request_id=name, finished=True, outputs=[made], num_cached_tokens=0,
            prompt_token_ids=list(request.prompt_ids),
        )  # fmt: skip


def conversation(tokens: int, seed: int) -> tuple[int, ...]:
    return seed, 7


class LoadedSystem:
    """aLoRA on the engine that is played."""

    name = "alora"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def requests(self, prefix: tuple[int, ...], policies: Any) -> list[Request]:
        return [Request((*prefix, 9), "alora", policy, LABELS) for policy in policies]

    def forget(self) -> None:
        self.engine.forget()


def generator(engine: Engine, given: BenchSettings) -> Generator:
    system: Any = LoadedSystem(engine)
    context: Any = SimpleNamespace(harness=SimpleNamespace(in_time=lambda: None), clock=engine)
    return Generator(given, system, conversation, context)


def offered_to(engine: Engine, rate: float, given: BenchSettings, population: int) -> tuple[Load, OfferedRate]:
    load = Load(LoadRecord("rate", "alora", population, given.serving.target_ms, 4, population))
    return load, generator(engine, given).offer(rate, load)


def references(load: Load, moved: float = 0.5) -> References:
    """What is asked about, answered as it should be."""
    known = {key: of(Result(Piece("", key[1], 0), scores=right(key[1]))) for key in load.asked}
    return References({"alora": known}, {"alora": moved})
