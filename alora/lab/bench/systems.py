"""The systems of the serving benchmark: ways to have N policies answered about one conversation.

Those of vLLM share one engine in this process, driven step by step: requests in, verdicts and the engine's own counters
out.
"""

import contextlib
import ctypes
import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, cast

import torch

from alora.base.fingerprint import Fingerprint
from alora.base.load import LoadedBase
from alora.client.engine import Engine, ServedAdapter, on_gpu, prepare_environment, vllm_api
from alora.config.schema import BenchSettings
from alora.errors import BaseError, CheckFailed
from alora.lab.bench.harness import Clock
from alora.lab.bench.material import Material, adapted
from alora.lab.bench.reference import PeftModels, last_logits
from alora.lab.bench.trials import Piece, Result, Run
from alora.prefix.scorer import Scorer
from alora.prompt.render import Prefix

KV_GIB = 2  # of the cache on CPU; VLLM_CPU_KVCACHE_SPACE goes before it
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # glibc's names
GPU_SHARE = 0.6  # of the GPU's memory for vLLM; the packed scorer's base needs some too


class System(Protocol):
    """Answers many policies about one conversation, timed. ``keeps``: whether it has a cache between calls."""

    keeps: bool = False

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run: ...

    def forget(self) -> None:
        """Empty the cache, if there is one."""

    def load(self, policies: Sequence[int]) -> None:
        """Put adapters into their slots, so that none is loaded while the clock runs."""


@dataclass(frozen=True)
class Request:
    """A prompt, the system that asks (base and reader: without an adapter), and the labels' tokens."""

    prompt_ids: tuple[int, ...]
    system: str
    policy: int
    label_ids: tuple[int, ...]


class BenchEngine(Engine):
    """An engine with room for the longest prompt, and a slot for each aLoRA and each LoRA that is compared. Adapters
    can be where they target alone: elsewhere vLLM would multiply standard LoRA's every token by zeros."""

    def __init__(self, settings: BenchSettings, material: Material, clock: Clock) -> None:
        serving, threads = settings.serving, torch.get_num_threads()
        compared = max(*settings.policies, min(serving.populations) if "open_loop" in serving.workloads else 1)
        tail = max(map(len, (*material.policy_texts, *(suffix.token_ids for suffix in material.suffixes))))
        longest = max(*settings.prefixes, serving.load_tokens) + tail + 8
        self.slots, self._clock, self._sent = 2 * compared, clock, 0
        if not on_gpu():
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_GIB))
            keep_freed_memory()
        prepare_environment()
        adapters = [
            ServedAdapter(f"{system}{policy}", folder, material.adapters[policy].spec.rank)
            for system, folders in material.folders.items() for policy, folder in enumerate(folders)
        ]  # fmt: skip
        self.options: dict[str, Any] = {
            "max_loras": self.slots,
            "max_cpu_loras": max(len(adapters), self.slots),
            "max_num_batched_tokens": max(serving.step_tokens, 64),
            "max_num_seqs": 256 if on_gpu() else 128,
            "enforce_eager": not on_gpu(),
            "skip_tokenizer_init": True,
            "seed": settings.seed,
        } | prepared_modules(sorted({part for adapter in material.adapters for part in adapted(adapter)}))
        self.options |= {"gpu_memory_utilization": GPU_SHARE} if on_gpu() else {}
        dtype = str(material.base.model.dtype).removeprefix("torch.")
        super().__init__(str(material.base.folder), adapters, dtype, longest, **self.options)
        if torch.get_num_threads() != threads:
            raise BaseError(
                f"vLLM changed torch's threads from {threads} to {torch.get_num_threads()}; set "
                "VLLM_CPU_OMP_THREADS_BIND=nobind and OMP_NUM_THREADS to bench.threads"
            )
        self._core: Any = self.llm.llm_engine

    def facts(self) -> dict[str, str]:
        """The engine as a record shows it."""
        facts = {"name": "vllm", **self.options, "block": self.block, "longest": self.longest}
        facts |= {} if on_gpu() else {"malloc": "keeps what is freed"}
        return {key: str(value) for key, value in facts.items()}

    def missing_reader(self) -> str | None:
        """Why vLLM's own shared-prefix reader (``/v1/systemone``, from 0.32 on) does not read this base, or None."""
        try:
            reader = importlib.import_module("vllm.entrypoints.generate.structured_decisions.strategies")
        except ImportError:
            return "this vLLM has no /v1/systemone"
        name = self._core.model_config.architecture
        return None if name in getattr(reader, "READ_STRATEGIES", {}) else f"/v1/systemone does not read {name}"

    def load(self, system: str, policies: Sequence[int]) -> None:
        """Put adapters into their slots, so that none is loaded while the clock runs."""
        for policy in policies:
            if (adapter := self._adapter(system, policy)) is not None:
                self._core.add_lora(adapter)

    def _adapter(self, system: str, policy: int) -> Any:
        return self.request(f"{system}{policy}" if system in ("alora", "lora") else None)

    def forget(self) -> None:
        """Empty the prefix cache."""
        if self.llm.reset_prefix_cache() is False:
            raise CheckFailed("vLLM did not empty its prefix cache; no cold burst can be measured")

    def send(self, request: Request) -> str:
        self._sent += 1
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        adapter = self._adapter(request.system, request.policy)
        self._core.add_request(str(self._sent), prompt, _sampling(request), lora_request=adapter)
        return str(self._sent)

    def step(self) -> list[Any]:
        return self._core.step()

    def answer(self, requests: Sequence[Request]) -> Run:
        """Send all requests at once and run until the last one is answered."""
        wall, start = time.perf_counter(), self._clock.now()
        names = [self.send(request) for request in requests]
        front = self._clock.now() - start
        done: dict[str, tuple[float, Any]] = {}
        while self._core.has_unfinished_requests():
            outputs = self.step()
            moment = self._clock.now() - start
            done |= {output.request_id: (moment, output) for output in outputs if output.finished}
        seconds, wall = self._clock.now() - start, time.perf_counter() - wall
        results = [read_result(request, *done[name]) for request, name in zip(requests, names, strict=True)]
        return Run.of(seconds, wall, results, front)


def keep_freed_memory() -> None:
    """Have glibc keep all freed memory. By default it maps each block beyond 32 MiB anew, and vLLM's LoRA kernel on CPU
    takes a larger one in each call of a long step, whose page faults would count as standard LoRA's own."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def read_result(request: Request, seconds: float, output: Any) -> Result:
    """vLLM's output as ours; the tokens are those that the engine says it ran."""
    completion, cached = output.outputs[0], int(output.num_cached_tokens or 0)
    scores = tuple(completion.logprobs[0][token].logprob for token in request.label_ids)
    piece = Piece.of(output.prompt_token_ids, request.label_ids, request.policy, len(completion.token_ids))
    return Result(piece, seconds, cached, scores)


def _sampling(request: Request) -> Any:
    """One token among the labels; the reader's requests as ``/v1/systemone`` makes them (``NextTokenStrategy``)."""
    labels = list(request.label_ids)
    asked: dict[str, Any] = {"logprobs": len(labels), "allowed_token_ids": labels, "ignore_eos": True}
    if request.system == "reader":
        asked = {"logprob_token_ids": labels}
    return vllm_api().SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, **asked)


def prepared_modules(targets: Sequence[str]) -> dict[str, Any]:
    """Which modules can take an adapter: all where vLLM has no such option, or does not know q_proj as in qkv_proj."""
    try:
        from vllm.lora.utils import is_in_target_modules  # optional, and not in every version

        packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        known = is_in_target_modules("layers.0.self_attn.qkv_proj", ["q_proj"], packed)
        known = known and "lora_target_modules" in {field.name for field in fields(vllm_api().vllm.EngineArgs)}
    except (ImportError, TypeError):
        known = False
    return {"lora_target_modules": list(targets)} if known else {}


@dataclass
class VllmSystem(System):
    """A system on the engine, named as in :data:`~alora.lab.bench.trials.WHAT`."""

    name: str
    engine: BenchEngine
    material: Material
    keeps: bool = True

    def requests(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> list[Request]:
        made, name = self.material, self.name
        return [Request(made.prompt(name, prefix_ids, n), name, n, made.suffixes[n].label_token_ids) for n in policies]

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
        made = self.material
        unknown = Fingerprint("random", "none", "none")
        base = LoadedBase(made.base.model, cast(Any, None), unknown, "random")  # it takes token ids
        suffixes = [made.suffixes[policy] for policy in policies]
        with Scorer(base, [made.adapters[policy] for policy in policies]) as scorer:
            rows, seconds, wall = self.clock.time(lambda: scorer.label_logits(Prefix(prefix_ids), suffixes))
        results = []
        for policy, row_L in zip(policies, rows, strict=True):
            shared = len(prefix_ids) if results else 0  # computed once, and counted for the first
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
            logits_V, took, _ = self._clock.time(partial(last_logits, model, prompt))
            seconds += took
            labels = list(self._material.suffixes[policy].label_token_ids)
            scores = tuple(torch.log_softmax(logits_V[labels], 0).tolist())
            results.append(Result(self._material.piece(prefix_ids, policy), seconds, 0, scores))
        return Run.of(seconds, time.perf_counter() - began, results)
