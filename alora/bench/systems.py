"""The systems of the serving benchmark: ways to have N policies answered about one conversation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.bench.engine import BenchEngine, Request
from alora.bench.harness import Clock
from alora.bench.material import Material
from alora.bench.reference import PeftModels, last_logits
from alora.bench.trials import Result, Run
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix


class System(Protocol):
    """Answers many policies about one conversation, timed. ``keeps``: whether it has a cache between calls."""

    keeps: bool = False

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run: ...

    def forget(self) -> None:
        """Empty the cache, if there is one."""

    def load(self, policies: Sequence[int]) -> None:
        """Put adapters into their slots, so that none is loaded while the clock runs."""


@dataclass
class VllmSystem(System):
    """A system on the engine, named as in :data:`~alora.bench.trials.WHAT`."""

    name: str
    engine: BenchEngine
    material: Material
    keeps: bool = True

    def requests(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> list[Request]:
        made, labels = self.material, [self.material.suffixes[policy].label_token_ids for policy in policies]
        pairs = zip(policies, labels, strict=True)
        return [Request(made.prompt(self.name, prefix_ids, one), self.name, one, own) for one, own in pairs]

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        return self.engine.answer(self.requests(prefix_ids, policies))

    def forget(self) -> None:
        self.engine.forget()

    def load(self, policies: Sequence[int]) -> None:
        self.engine.load(self.name, policies)


@dataclass
class PackedScorer(System):
    """:class:`~alora.prefix.scorer.Scorer`: prefix once, then all suffixes in packed passes."""

    material: Material
    clock: Clock

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        made, rows = self.material, list[torch.Tensor]()
        unknown = Fingerprint("random", "none", "none")
        base = LoadedBase(made.base.model, cast(Any, None), unknown, "random")  # it takes token ids
        suffixes = [made.suffixes[policy] for policy in policies]
        with Scorer(base, [made.adapters[policy] for policy in policies]) as scorer:
            seconds, wall = self.clock.time(lambda: rows.extend(scorer.label_logits(Prefix(prefix_ids), suffixes)))
        results = []
        for number, (policy, row_L) in enumerate(zip(policies, rows, strict=True)):
            shared = len(prefix_ids) if number else 0  # computed once, and counted for the first
            scores = tuple(torch.log_softmax(row_L.float(), 0).tolist())
            results.append(Result(made.piece(prefix_ids, policy), seconds, shared, scores))
        return Run.of(seconds, wall, results)


class PeftLora(System):
    """Standard LoRA where there is no vLLM: one PEFT prefill per policy; weights are exchanged outside the clock."""

    def __init__(self, material: Material, clock: Clock) -> None:
        self._material, self._clock, self._models = material, clock, PeftModels(material)

    @torch.inference_mode()
    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        seconds, began, results = 0.0, time.perf_counter(), []
        for policy in policies:
            model, prompt = self._models.model("lora", policy), self._material.prompt("lora", prefix_ids, policy)
            rows: list[torch.Tensor] = []
            took, _ = self._clock.time(lambda one=(model, prompt), rows=rows: rows.append(last_logits(*one)))
            seconds += took
            labels = list(self._material.suffixes[policy].label_token_ids)
            scores = tuple(torch.log_softmax(rows[0][labels], 0).tolist())
            results.append(Result(self._material.piece(prefix_ids, policy), seconds, 0, scores))
        return Run.of(seconds, time.perf_counter() - began, results, len(results))
