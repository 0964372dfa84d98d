"""Runs and trials made by hand, for checking what judges them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from alora.lab.bench.harness import evaluate
from alora.lab.bench.record import Machine, MeasuredBase, Record
from alora.lab.bench.reference import References, of, sampled
from alora.lab.bench.serving import ServingBench
from alora.lab.bench.shapes import SHAPES
from alora.lab.bench.trials import AA, Cell, Piece, Result, Run, Trial
from alora.prompt.render import Suffix

LABELS = (11, 12)
PREFIX = tuple(range(100, 164))


def right(policy: int) -> tuple[float, float]:
    """Log probabilities that every reference gives to a policy here."""
    return -0.5 - 0.01 * policy, -0.9


def burst(
    policies: Sequence[int] = (0, 1, 2),
    seconds: float = 1.0,
    cached: Sequence[int] | None = None,
    suffix: int = 4,
    scores: Sequence[tuple[float, float]] | None = None,
    tokens: int = 32,
) -> Run:
    """A burst about one conversation; by default the first request computes it and the rest hit it."""
    hits = cached if cached is not None else ([0] + [tokens] * len(policies))[: len(policies)]
    rows = scores if scores is not None else [right(policy) for policy in policies]
    pieces = [Piece.of(PREFIX[:tokens] + (7,) * suffix + (200 + policy,), LABELS, policy) for policy in policies]
    answers = [Result(piece, seconds, hit, row) for piece, hit, row in zip(pieces, hits, rows, strict=True)]
    return Run.of(seconds, seconds, answers, front=0.1 * seconds)


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
    """Sizes that a roofline is counted from."""
    return SimpleNamespace(
        base=SimpleNamespace(shape=SHAPES["toy"], model=SimpleNamespace(dtype=torch.float32)),
        adapters=[adapter_of(4, ("q_proj", "v_proj"))] * 9, suffixes=[Suffix((7,) + (8,) * 4, (7,), LABELS)] * 9,
        policy_texts=[(7,) * 9] * 9,
    )  # fmt: skip


@dataclass
class Played:
    """How a system behaves in a planted run. ``answers`` gives the scores of a policy in a round, ``first`` what the
    stage in which the base reads hits, ``hits`` what each request of the compared stages does (None: as it should).
    """

    kind: str
    seconds: float = 1.0
    answers: Callable[[int, int], tuple[float, float]] = lambda policy, number: right(policy)
    hits: Sequence[int] | None = None
    first: int = 0
    suffix: int = 4
    policies: Sequence[int] = (0, 1, 2)
    rounds: Sequence[int] = tuple(range(9))
    drift: Callable[[int], float] = lambda number: 1.0

    def trials(self, name: str, cell: Cell) -> list[Trial]:
        """A compared stage, once a round."""
        tokens, kept = cell.size("tokens"), cell.kept.get(name)
        own = [0] * len(self.policies) if self.kind == "lora" else [0] + [tokens] * (len(self.policies) - 1)
        hits = [kept] * len(self.policies) if kept else own
        hits = hits if self.hits is None else self.hits[: len(self.policies)]
        found = []
        for number in self.rounds:
            rows = [self.answers(policy, number) for policy in self.policies]
            run = burst(self.policies, self.seconds * self.drift(number), hits, self.suffix, rows, tokens)
            found.append(Trial(name, number, 0, run))
        return found

    def read(self, name: str, tokens: int) -> list[Trial]:
        """A stage in which the base reads the conversation."""
        answer = Result(Piece.of(PREFIX[:tokens], LABELS, 0), 1.0, self.first, right(0))
        return [Trial(name, number, 0, Run.of(1.0, 1.0, [answer])) for number in self.rounds]


def players() -> dict[str, Played]:
    """Three systems that do as they should: standard LoRA takes nine times as long."""
    return {"alora": Played("alora"), AA: Played("alora"), "lora": Played("lora", seconds=9.0)}


def played(workload: str, systems: Mapping[str, Played]) -> list[Cell]:
    """The cells of a workload in which each system behaves as told."""
    ours, at = (["alora"] if "alora" in systems else ["packed"]), {"tokens": 64, "policies": 3}
    if workload == "grid":
        stages = [Cell("grid", at, ours)]
    elif workload == "conversation":
        kept = dict.fromkeys(systems, 32)
        stages = [Cell(workload, {"turn": 1, **at, "tokens": 32}, ours), Cell(workload, {"turn": 2, **at}, ours, kept)]
    else:
        kept = {name: 0 if name == "lora" else 64 for name in systems}
        stages = [Cell(workload, {**at, "stage": "read"}), Cell(workload, {**at, "stage": "warm"}, ours, kept),
                  Cell(workload, {**at, "stage": "again"}, ours, dict.fromkeys(systems, 64))]  # fmt: skip
    for name, system in systems.items():
        for cell in stages:
            cell.trials.extend(system.trials(name, cell) if cell.ours else system.read(name, 64))
    return stages


def judged(cells: Sequence[Cell], on: Machine | None = None, moved: Mapping[str, float] | None = None) -> Record:
    """``evaluate`` of planted cells, with references that know what was sampled, and nothing more."""
    bench: Any = object.__new__(ServingBench)
    ours = next(cell.ours[0] for cell in cells if cell.ours)
    vars(bench).update(
        _harness=SimpleNamespace(cells=list(cells)), _context=SimpleNamespace(machine=on or machine()),
        material=material(), tolerance=1e-3, ours=ours,
        systems={name: SimpleNamespace(keeps=True) for cell in cells for name in cell.systems},
        conversation=lambda tokens: PREFIX[:tokens],
    )  # fmt: skip
    wanted = [one for cell in cells for one in sampled(cell, PREFIX[: cell.size("tokens")])]
    known: dict[str, dict[Any, Any]] = {"alora": {}, "lora": {}, "base": {}}
    for kind, key in wanted:
        known[kind][key] = of(Result(Piece("", key[1], 0), scores=right(key[1])))
    bench._references = References(known, {"alora": 0.5, "lora": 0.5} | dict(moved or {}))
    found, aa = evaluate(list(cells), bench)
    return record_of(found, aa)


def codes(record: Record) -> list[list[str]]:
    """Of every ratio that was withheld."""
    return [[refusal.code for refusal in ratio.refused] for cell in record.cells for ratio in cell.ratios]


def record_of(cells: Sequence[Cell], aa: Mapping[str, Any]) -> Record:
    """A record that holds these."""
    base = MeasuredBase("27m", {"weights": "random"}, 27, 8, 512, 4096, "float32", "cpu", "none", 1.0)
    settings = {"rank": "8", "targets": "q_proj", "suffix": "4", "prefixes": "32", "seed": "0", "threads": "1"}
    settings |= {"rounds": "3", "serving.turns": "1"}
    whole: dict[str, Any] = {
        "benchmark": "serving", "environment": {"torch": "2", "command": "alora bench", "processor": "A CPU"},
        "settings": settings, "base": base, "clock": "wall time", "tolerance": 1e-3, "machine": machine(),
        "engine": {"name": "vllm"}, "aa": aa, "stopped": None, "wall_seconds": 2.0, "cpu_seconds": 1.0,
    }  # fmt: skip
    return Record(cells=list(cells), load=[], **whole)
