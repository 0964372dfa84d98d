"""The systems of the serving benchmark: ways to have N policies answered about one conversation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from alora.adapter.folder import AdapterSpec
from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.bench.baselines import peft_model, put_adapter
from alora.bench.engine import BenchEngine, Request
from alora.bench.harness import Clock
from alora.bench.material import Material
from alora.bench.trials import READS_TEXT, Piece, Result, Run
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix


class System(Protocol):
    """Answers many policies about one conversation, timed. ``keeps``: whether it has a cache between calls, which
    ``forget`` empties.
    """

    keeps: bool

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run: ...
    def forget(self) -> None: ...


@dataclass
class VllmSystem:
    """A system on the engine, named as in :data:`~alora.bench.trials.WHAT`."""

    name: str
    engine: BenchEngine
    material: Material
    keeps: bool = True

    def requests(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> list[Request]:
        requests = []
        for policy in policies:
            suffix = self.material.suffixes[policy]
            tail = self.material.policy_texts[policy] if self.name in READS_TEXT else suffix.token_ids
            requests.append(Request(prefix_ids + tail, self.name, policy, suffix.label_token_ids))
        return requests

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        return self.engine.answer(self.requests(prefix_ids, policies))

    def forget(self) -> None:
        self.engine.forget()


class InProcess:
    """A system without a cache between calls."""

    keeps = False

    def __init__(self, material: Material, clock: Clock) -> None:
        self._material, self._clock = material, clock

    def forget(self) -> None:
        """It keeps nothing."""


class PackedScorer(InProcess):
    """:class:`~alora.prefix.scorer.Scorer`: prefix once, then all suffixes in packed passes."""

    _policies: tuple[int, ...] = ()  # that the scorer was made for
    _scorer: Scorer | None = None

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        scorer, suffixes = self._scorer_of(policies), [self._material.suffixes[policy] for policy in policies]
        rows: list[torch.Tensor] = []
        seconds, wall = self._clock.time(lambda: rows.extend(scorer.label_logits(Prefix(prefix_ids), suffixes)))
        results = []
        for number, (policy, suffix, row_L) in enumerate(zip(policies, suffixes, rows, strict=True)):
            piece = Piece.of(prefix_ids + suffix.token_ids, suffix.label_token_ids, policy)
            shared = len(prefix_ids) if number else 0  # computed once, and counted for the first
            results.append(Result(piece, seconds, shared, tuple(torch.log_softmax(row_L.float(), 0).tolist())))
        return Run.of(seconds, wall, results)

    def _scorer_of(self, policies: Sequence[int]) -> Scorer:
        if self._scorer is None or self._policies != tuple(policies):
            self.close()
            unknown = Fingerprint("random", "none", "none")
            base = LoadedBase(self._material.base.model, cast(Any, None), unknown, "random")  # it takes token ids
            self._scorer = Scorer(base, [self._material.adapters[policy] for policy in policies])
            self._policies = tuple(policies)
        return self._scorer

    def close(self) -> None:
        if self._scorer is not None:
            self._scorer.close()
        self._scorer = None


class PeftLora(InProcess):
    """Standard LoRA where there is no vLLM: one PEFT prefill per policy; weights are exchanged outside the clock."""

    _model: Any = None
    _spec: AdapterSpec | None = None

    @torch.inference_mode()
    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        seconds, began, results = 0.0, time.perf_counter(), []
        for policy in policies:
            adapter, suffix = self._material.twin(policy), self._material.suffixes[policy]
            if adapter.spec != self._spec:
                self._model, self._spec = peft_model(self._material.base.model, adapter.spec).eval(), adapter.spec
            put_adapter(self._model, adapter)
            prompt, rows = prefix_ids + suffix.token_ids, list[torch.Tensor]()
            took, _ = self._clock.time(lambda ids=prompt, rows=rows: rows.append(last_logits(self._model, ids)))
            seconds += took
            row_L = torch.log_softmax(rows[0][list(suffix.label_token_ids)], 0)
            piece = Piece.of(prompt, suffix.label_token_ids, policy)
            results.append(Result(piece, seconds, 0, tuple(row_L.tolist())))
        return Run.of(seconds, time.perf_counter() - began, results, len(results))


def last_logits(model: Any, prompt: tuple[int, ...], **options: Any) -> torch.Tensor:
    """Logits ``[V]`` behind a prompt, on the CPU."""
    ids_BT = torch.tensor([prompt], device=model.device)
    return model(input_ids=ids_BT, logits_to_keep=1, use_cache=False, **options).logits[0, -1].float().cpu()
