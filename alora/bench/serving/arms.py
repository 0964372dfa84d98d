"""The ways to answer a battery: N policies about one conversation, the same for each arm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.bench.baselines import peft_model, put_adapter
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.engine import BenchEngine
from alora.bench.serving.material import Material
from alora.bench.serving.records import Answer, Ask, Burst, pieces
from alora.prefix.scorer import Scorer
from alora.render import Prefix, Suffix

NULL = "null"  # aLoRA once more, under another name
WHAT = {
    "lora": "standard LoRA: the same weights, adapted from token 0",
    "alora": "aLoRA through the plugin",
    NULL: "ours against itself",
    "base": "the base alone, with the policy's text as prompt",
    "packed": "the packed scorer, in this process, without a cache between calls",
}


class Arm(Protocol):
    """One way to answer. ``run`` is what the clock sees."""

    name: str

    def run(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> Burst:
        """All verdicts about one conversation."""
        ...

    def forget(self) -> None:
        """Begin with an empty cache."""
        ...


@dataclass
class VllmArm:
    """An arm on the engine; ``kind`` of adapter, None for the base, which reads the policy's text instead."""

    name: str
    kind: str | None
    engine: BenchEngine
    material: Material

    def asks(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> list[Ask]:
        """One request per policy."""
        suffixes = self.material.suffixes if self.kind is not None else self.material.policy_texts
        labels = self.material.labels
        return [Ask(prefix_ids + suffixes[place], self.kind, place, labels[place]) for place in places]

    def load(self, places: Sequence[int]) -> None:
        """Put its adapters into their slots; the base has none."""
        if self.kind is not None:
            self.engine.load(self.kind, places)

    def run(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> Burst:
        """Send all at once."""
        return self.engine.answer(self.asks(prefix_ids, places))

    def forget(self) -> None:
        """Empty the engine's cache."""
        self.engine.forget()


class PackedArm:
    """:class:`~alora.prefix.scorer.Scorer`: prefix once, then all suffixes in packed passes."""

    name = "packed"

    def __init__(self, material: Material, clock: BenchClock) -> None:
        self._material, self._clock = material, clock
        self._scorers: dict[tuple[int, ...], Scorer] = {}

    def run(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> Burst:
        """One call."""
        material = self._material
        scorer = self.prepare(places)
        suffixes = [Suffix(material.suffixes[p], material.invocations[p], material.labels[p]) for p in places]
        wall, start = time.perf_counter(), self._clock.now()
        logits = scorer.label_logits(Prefix(prefix_ids), suffixes)  # on the CPU at the end, so a GPU is waited for
        seconds, wall = self._clock.now() - start, time.perf_counter() - wall
        asks = [Ask(prefix_ids + material.suffixes[p], "alora", p, material.labels[p]) for p in places]
        answers = []
        for number, (ask, row_L) in enumerate(zip(asks, logits, strict=True)):
            scores = tuple(torch.log_softmax(row_L.float(), 0).tolist())
            best = ask.label_ids[int(row_L.argmax())]
            shared = len(prefix_ids) if number else 0  # computed once, whoever is said to have paid for it
            answers.append(Answer(seconds, seconds, len(ask.prompt_ids), shared, (best,), scores))
        return Burst(seconds, wall, 0.0, None, 1, pieces(asks, answers), tuple(answers))

    def prepare(self, places: Sequence[int]) -> Scorer:
        """The scorer of these adapters; only the last one is kept."""
        key = tuple(places)
        if key not in self._scorers:
            self.close()
            nothing = Fingerprint("random", "none", "none")
            base = LoadedBase(self._material.model, cast(Any, None), nothing, "random")  # a scorer takes token ids
            self._scorers[key] = Scorer(base, [self._material.adapters[place] for place in places])
        return self._scorers[key]

    def forget(self) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """Take the adapters off the base."""
        for scorer in self._scorers.values():
            scorer.close()
        self._scorers = {}


class PeftLoraArm:
    """Standard LoRA where there is no vLLM: one PEFT prefill per policy; weights are exchanged outside the clock."""

    name = "lora"

    def __init__(self, material: Material, clock: BenchClock) -> None:
        self._material, self._clock = material, clock
        self._model: Any = None
        self._spec: AdapterSpec | None = None

    def run(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> Burst:
        """One prefill after another."""
        material, seconds, walls, asks, answers = self._material, 0.0, 0.0, [], []
        for place in places:
            self._put(material.twin(place))
            ask = Ask(prefix_ids + material.suffixes[place], "lora", place, material.labels[place])
            ids = torch.tensor([ask.prompt_ids], device=self._model.device)
            wall, start = time.perf_counter(), self._clock.now()
            with torch.inference_mode():
                logits_V = self._model(input_ids=ids, logits_to_keep=1, use_cache=False).logits[0, -1].float().cpu()
            seconds, walls = seconds + self._clock.now() - start, walls + time.perf_counter() - wall
            row_L = torch.log_softmax(logits_V[list(ask.label_ids)], 0)
            best = ask.label_ids[int(row_L.argmax())]
            asks.append(ask)
            answers.append(Answer(seconds, seconds, len(ask.prompt_ids), 0, (best,), tuple(row_L.tolist())))
        return Burst(seconds, walls, 0.0, None, len(asks), pieces(asks, answers), tuple(answers))

    def _put(self, adapter: AdapterWeights) -> None:
        if adapter.spec != self._spec:
            self._model, self._spec = peft_model(self._material.model, adapter.spec).eval(), adapter.spec
        put_adapter(self._model, adapter)

    def forget(self) -> None:
        """It keeps nothing."""
