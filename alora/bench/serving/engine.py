"""One vLLM engine in this process: requests in, first tokens and the engine's own counters out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from alora.bench.serving.clock import BenchClock
from alora.bench.serving.records import Answer, Ask, Burst, pieces
from alora.errors import BaseError, CheckFailed, MissingDependency
from alora.serving.engine import RANKS


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is started; the same for every arm.

    ``slots`` adapters fit beside each other, so no arm waits for a place; ``tokens`` are scheduled at most in a step.
    Only ``targets`` are prepared for adapters: by default vLLM multiplies by zeros wherever an adapter has no weights,
    which standard LoRA would pay for on every token.
    """

    base: str
    dtype: str
    rank: int
    slots: int
    adapters: int
    longest: int
    tokens: int
    requests: int
    kv_gib: float
    gpu_share: float
    graphs: bool
    seed: int
    tokenizer: bool
    targets: tuple[str, ...]


class BenchEngine:
    """An offline ``vllm.LLM``, driven step by step so that every request's first token has its own time.

    Args:
        folders: adapter folders by kind (``alora``, ``lora``) and place.

    Raises:
        MissingDependency: vLLM is not installed.
        CheckFailed: the plugin is not active, so the aLoRA arm would not be one.
    """

    def __init__(self, options: EngineOptions, folders: Mapping[str, Sequence[Path]], clock: BenchClock) -> None:
        _prepare_environment(options.kv_gib)
        try:
            from vllm import LLM
        except ImportError as error:
            raise MissingDependency(
                f"bench.serving.engine=vllm needs vLLM ({error}); install it, or take scorer"
            ) from error
        from alora.vllm_plugin import register, status

        register()
        if not status().active:
            raise CheckFailed(f"the vLLM plugin is not active: {status().reason}; `alora doctor` says more")
        self.options, self._clock = options, clock
        self.block = 16 if torch.cuda.is_available() else 32
        self._requests = _lora_requests(folders)
        self._sent = 0
        threads = torch.get_num_threads()
        self.llm: Any = LLM(**_settings(options, self.block))
        if torch.get_num_threads() != threads:
            raise BaseError(
                f"vLLM changed torch's threads from {threads} to {torch.get_num_threads()}; set "
                "VLLM_CPU_OMP_THREADS_BIND=nobind and OMP_NUM_THREADS to bench.threads"
            )
        self._core: Any = self.llm.llm_engine
        self._host = _HostTime(self._core, clock)

    def load(self, kind: str, places: Sequence[int]) -> None:
        """Put adapters into their slots, so that none is loaded while the clock runs."""
        for place in places:
            self._core.add_lora(self._requests[kind, place])

    def forget(self) -> None:
        """Empty the prefix cache.

        Raises:
            CheckFailed: the engine would not, so a cold battery would not be cold.
        """
        if self.llm.reset_prefix_cache() is False:
            raise CheckFailed("vLLM did not empty its prefix cache; no cold battery can be measured")

    def send(self, ask: Ask) -> str:
        """Hand one request over; its name."""
        self._sent += 1
        name = str(self._sent)
        lora = self._requests[ask.kind, ask.place] if ask.kind is not None else None
        prompt = {"prompt_token_ids": list(ask.prompt_ids)}
        self._core.add_request(name, prompt, _sampling(ask), lora_request=lora)
        return name

    @property
    def busy(self) -> bool:
        """Whether a request is not finished yet."""
        return self._core.has_unfinished_requests()

    def step(self) -> list[Any]:
        """One step of the engine; vLLM's own outputs."""
        return self._core.step()

    def answer(self, asks: Sequence[Ask]) -> Burst:
        """Send all requests at once and run until the last one is answered."""
        now, wall = self._clock.now, time.perf_counter()
        self._host.spent = 0.0
        start = now()
        names = [self.send(ask) for ask in asks]
        front, steps = now() - start, 0
        first: dict[str, float] = {}
        done: dict[str, tuple[float, Any]] = {}
        while self.busy:
            outputs = self.step()
            moment = now() - start
            steps += 1
            for output in outputs:
                first.setdefault(output.request_id, moment)
                if output.finished:
                    done[output.request_id] = (moment, output)
        seconds, wall = now() - start, time.perf_counter() - wall
        answers = [read_answer(ask, first[name], *done[name]) for ask, name in zip(asks, names, strict=True)]
        host = self._host.spent if self._host.complete else None
        return Burst(seconds, wall, front, host, steps, pieces(asks, answers), tuple(answers))


def read_answer(ask: Ask, first: float, last: float, output: Any) -> Answer:
    """vLLM's output as ours."""
    made = output.outputs[0]
    scores: tuple[float, ...] = ()
    if ask.label_ids:
        found = made.logprobs[0]
        scores = tuple(found[token].logprob for token in ask.label_ids)
    cached = int(output.num_cached_tokens or 0)
    return Answer(first, last, len(output.prompt_token_ids), cached, tuple(made.token_ids), scores)


class _HostTime:
    """Time inside the scheduler and the output processor: Python that runs beside the model, by wrapping three calls.

    Where a version of vLLM names them otherwise, or schedules a step while the model runs the last one, ``complete`` is
    False and nothing is reported.
    """

    def __init__(self, engine: Any, clock: BenchClock) -> None:
        self.spent, self._clock = 0.0, clock
        core = getattr(getattr(engine, "engine_core", None), "engine_core", None)
        scheduler, output = getattr(core, "scheduler", None), getattr(engine, "output_processor", None)
        wanted = [(scheduler, "schedule"), (scheduler, "update_from_output"), (output, "process_outputs")]
        beside = getattr(getattr(scheduler, "scheduler_config", None), "async_scheduling", False)
        self.complete = not beside and all(callable(getattr(owner, name, None)) for owner, name in wanted)
        if self.complete:
            for owner, name in wanted:
                setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock.now()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent += self._clock.now() - start

        return timed


def _lora_requests(folders: Mapping[str, Sequence[Path]]) -> dict[tuple[str, int], Any]:
    from vllm.lora.request import LoRARequest

    found: dict[tuple[str, int], Any] = {}
    for kind, paths in folders.items():
        for place, path in enumerate(paths):
            found[kind, place] = LoRARequest(f"{kind}{place}", len(found) + 1, str(path))
    return found


def _sampling(ask: Ask) -> Any:
    from vllm import SamplingParams

    if not ask.label_ids:
        return SamplingParams(temperature=0.0, max_tokens=ask.new_tokens, ignore_eos=True, detokenize=False)
    return SamplingParams(
        temperature=0.0,
        max_tokens=ask.new_tokens,
        ignore_eos=True,
        logprobs=len(ask.label_ids),
        allowed_token_ids=list(ask.label_ids),
        detokenize=False,
    )


def _settings(options: EngineOptions, block: int) -> dict[str, Any]:
    gpu = torch.cuda.is_available()
    return {
        "model": options.base,
        "dtype": options.dtype,
        "skip_tokenizer_init": not options.tokenizer,
        "enable_lora": True,
        "max_loras": options.slots,
        "max_cpu_loras": max(options.adapters, options.slots),
        "max_lora_rank": next(rank for rank in RANKS if rank >= options.rank),
        "max_model_len": options.longest,
        "max_num_batched_tokens": options.tokens,
        "max_num_seqs": options.requests,
        "block_size": block,
        "enable_prefix_caching": True,
        "enforce_eager": not (gpu and options.graphs),
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "seed": options.seed,
        **_prepared(options.targets),
        **({"gpu_memory_utilization": options.gpu_share} if gpu else {}),
    }


def _prepared(targets: Sequence[str]) -> dict[str, Any]:
    """Which modules can take an adapter. A version of vLLM that does not ask prepares all of them, and so does one that
    would not know q_proj as a part of its own qkv_proj, and leave it out.
    """
    from vllm.engine.arg_utils import EngineArgs

    try:
        from vllm.lora.utils import is_in_target_modules

        packed = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        known = is_in_target_modules("layers.0.self_attn.qkv_proj", ["q_proj"], packed)
    except (ImportError, TypeError):
        known = False
    known = known and "lora_target_modules" in {field.name for field in fields(EngineArgs)}
    return {"lora_target_modules": list(targets)} if known else {}


def _prepare_environment(kv_gib: float) -> None:
    """Settings that vLLM reads at import. The engine core stays in this process, so that all of its time is seen."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, round(kv_gib))))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
