"""Bursts and trials made by hand, for checking what judges them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from alora.bench.serving.arms import PeftLoraArm
from alora.bench.serving.evaluate import evaluate
from alora.bench.serving.floor import Floors, Machine
from alora.bench.serving.records import BASE_STAGES, Answer, Ask, Burst, Cell, Trial, pieces
from alora.bench.serving.reference import References, sampled
from alora.bench.shapes import SHAPES
from alora.config.schema import BenchSettings

LABELS = (11, 12)
PREFIX = tuple(range(100, 132))


def burst(
    places: Sequence[int] = (0, 1, 2),
    seconds: float = 1.0,
    cached: Sequence[int] | None = None,
    suffix: int = 4,
    kind: str = "alora",
    scores: Sequence[tuple[float, float]] | None = None,
) -> Burst:
    """A battery about one conversation of 32 tokens; by default the first request computes it and the rest hit it."""
    asks = [Ask(PREFIX + (7,) * suffix + (200 + place,), kind, place, LABELS) for place in places]
    hits = cached if cached is not None else [0] + [32] * (len(asks) - 1)
    rows = scores if scores is not None else [right(place) for place in places]
    answers = [
        Answer(seconds, seconds, len(ask.prompt_ids), hit, (11,), row)
        for ask, hit, row in zip(asks, hits, rows, strict=True)
    ]
    return Burst(seconds, seconds, 0.1 * seconds, 0.1 * seconds, 1, pieces(asks, answers), tuple(answers))


def trials(arm: str, seconds: Sequence[float], scale: float = 1.0, **how) -> list[Trial]:
    """One trial per round."""
    return [Trial(arm, number, 0, burst(seconds=value, **how), scale) for number, value in enumerate(seconds)]


def right(place: int) -> tuple[float, float]:
    """Log probabilities that every reference gives to a policy here."""
    return -0.5 - 0.01 * place, -0.9


def machine(flops: float = 1e12, bandwidth: float = 1e12) -> Machine:
    """One that multiplies and copies at these rates."""
    return Machine({"torch": flops}, bandwidth)


def adapter_of(rank: int, targets: Sequence[str], layers: int = SHAPES["toy"].layers) -> Any:
    """An adapter's rank, and tensors of the right sizes."""
    linears = SHAPES["toy"].linears
    sizes = {f"model.layers.{n}.part.{name}": linears[name] for n in range(layers) for name in targets}
    tensors = {name: (torch.zeros(rank, wide), torch.zeros(out, rank)) for name, (wide, out) in sizes.items()}
    return SimpleNamespace(spec=SimpleNamespace(rank=rank, targets=tuple(targets)), tensors=tensors)


def material() -> Any:
    """Sizes that a floor is counted from."""
    shape = SHAPES["toy"]
    adapter = adapter_of(4, ("q_proj", "v_proj"))
    return SimpleNamespace(
        shape=shape, adapters=[adapter] * 9, model=SimpleNamespace(dtype=torch.float32),
        suffixes=[(7,) * 5] * 9, policy_texts=[(7,) * 9] * 9, labels=[LABELS] * 9,
    )  # fmt: skip


@dataclass
class Played:
    """How an arm behaves in a planted run. ``answers`` gives the scores of a policy in a round, ``first`` what the
    stage before the compared one hits, ``hits`` what each request of the compared one does (None: as it should).
    """

    kind: str
    seconds: float = 1.0
    answers: Callable[[int, int], tuple[float, float]] = lambda place, number: right(place)
    hits: Sequence[int] | None = None
    first: int = 0
    suffix: int = 4
    scale: float = 1.0
    rounds: Sequence[int] = tuple(range(9))
    drift: Callable[[int], float] = lambda number: 1.0

    def trials(self, name: str, places: Sequence[int], cold: bool, again: bool = False) -> list[Trial]:
        """The compared stage, once a round."""
        shared = [32] * len(places) if again or not cold else [0] + [32] * (len(places) - 1)
        own = [0] * len(places) if self.kind == "lora" and not again else shared
        found = []
        for number in self.rounds:
            rows = [self.answers(place, number) for place in places]
            hits = own if self.hits is None else self.hits[: len(places)]
            seconds = self.seconds * self.drift(number)
            answered = burst(places, seconds, hits, self.suffix, self.kind, rows)
            found.append(Trial(name, number, 0, answered, self.scale))
        return found

    def read(self, name: str, tokens: int, made: tuple[int, ...]) -> list[Trial]:
        """A stage in which the base reads ``tokens`` of the conversation, and says ``made``."""
        ask = Ask(PREFIX[:tokens], None, 0, LABELS if len(made) == 1 else (), len(made))
        answer = Answer(1.0, 1.0, tokens, self.first, made, (-0.5, -0.9))
        read = Burst(1.0, 1.0, 0.1, 0.1, 1, pieces([ask], [answer]), (answer,))
        return [Trial(name, number, 0, read) for number in self.rounds]


def players() -> dict[str, Played]:
    """Three arms that do as they should: standard LoRA takes nine times as long."""
    return {"alora": Played("alora"), "null": Played("alora"), "lora": Played("lora", seconds=9.0)}


def played(workload: str, arms: Mapping[str, Played]) -> list[Cell]:
    """The cells of a workload in which each arm behaves as told."""
    at: dict[str, Any] = {"length": 32, "adapters": 3}
    if workload == "grid":
        stages = [Cell("grid", at)]
    elif workload == "conversation":
        stages = [Cell("conversation", {"turn": turn, **at}) for turn in (1, 2)]
    elif workload == "warm":
        stages = [Cell("warm", {**at, "stage": stage}) for stage in ("read", "warm", "again")]
    else:
        at = {"length": 16, "tokens": 16}
        stages = [Cell("pipeline", {**at, "stage": stage}) for stage in ("base", "adapter", "base again")]
    for name, arm in arms.items():
        for cell in stages:
            stage = cell.at.get("stage")
            if stage in BASE_STAGES:
                cell.trials += arm.read(name, cell.at["length"], PREFIX[16:] if workload == "pipeline" else (11,))
                continue
            places = (0,) if workload == "pipeline" else (0, 1, 2)
            cold = workload == "grid" or cell.at.get("turn") == 1
            cell.trials += arm.trials(name, places, cold, again=stage == "again" or cell.at.get("turn") == 2)
    return stages


def judged(
    cells: Sequence[Cell],
    on: Machine | None = None,
    slots: int | None = None,
    moved: Mapping[str, float] | None = None,
    without_cache: bool = False,
) -> dict[str, Any]:
    """``evaluate`` of planted cells beside references that know what was sampled, and nothing more."""
    engine = None if slots is None else SimpleNamespace(options=SimpleNamespace(slots=slots))
    kind = object.__new__(PeftLoraArm) if without_cache else None
    bench: Any = SimpleNamespace(
        settings=BenchSettings(), arms=dict.fromkeys((a for cell in cells for a in cell.arms), kind), cells=list(cells),
        engine=engine, conversation=lambda tokens: PREFIX[:tokens], tolerance=1e-3, verdicts=[],
    )  # fmt: skip
    known = {
        kind: {key: tuple(torch.softmax(torch.tensor(right(key[1])), 0).tolist()) for key in keys}
        for kind, keys in sampled(bench).items()
    }
    bench.references = References(**known, moved={"alora": 0.5, "lora": 0.5} | dict(moved or {}))
    return evaluate(bench, Floors(material(), on or machine()))
