"""A real vLLM engine in this process, and the few questions that the tests ask it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tests.vllm.toy_models import BLOCK, VOCABULARY, ToyAdapter

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class Answer:
    """One request's answer: logprobs over the vocabulary for the first new token, and what the cache gave."""

    logprobs_V: torch.Tensor
    cached_tokens: int
    token_ids: tuple[int, ...]


class ToyEngine:
    """``vllm.LLM`` on a toy model; ``settings`` go to ``LLM`` over the defaults below.

    Engines live as long as the process: one that dies takes the process groups of all others with it.
    """

    _alive: ClassVar[list["ToyEngine"]] = []

    def __init__(self, model: str, **settings: Any) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import LLM

        defaults: dict[str, Any] = {
            "dtype": "float32",
            "enforce_eager": True,
            "enable_lora": True,
            "max_loras": 4,
            "max_cpu_loras": 16,
            "max_lora_rank": 16,
            "block_size": BLOCK,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 2048,
            "enable_prefix_caching": True,
            "max_logprobs": VOCABULARY,
            "num_gpu_blocks_override": 256,
            "seed": 0,
            "disable_log_stats": True,
        }
        self.llm = LLM(model=model, **{**defaults, **settings})
        self._alive.append(self)

    @property
    def core(self) -> Any:
        """The engine core, which lives in this process."""
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def runner(self) -> Any:
        return self.core.model_executor.driver_worker.model_runner

    def clear(self) -> None:
        """Forget every cached prefix."""
        assert self.llm.reset_prefix_cache() is not False

    def ask(
        self,
        prompts: Sequence[Sequence[int]],
        adapters: Sequence[ToyAdapter | None],
        max_tokens: int = 1,
        salt: str | None = None,
        logprobs: int | None = VOCABULARY,
        prompt_logprobs: int | None = None,
        in_place: bool = False,
        weights: str | None = None,
    ) -> list[Answer]:
        """Send all prompts at once, each with its adapter; ``in_place`` asks to load it over its old weights, and
        ``weights`` is the digest of those that may answer."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, ignore_eos=True, detokenize=False,
            prompt_logprobs=prompt_logprobs, extra_args=None if weights is None else {"alora_weights": weights},
        )  # fmt: skip
        inputs: list[Any] = [
            {"prompt_token_ids": list(ids), **({"cache_salt": salt} if salt else {})} for ids in prompts
        ]
        outputs = self.llm.generate(
            inputs, params, lora_request=[lora_request(adapter, in_place) for adapter in adapters], use_tqdm=False
        )
        return [_answer(output) for output in outputs]

    def ask_one(self, prompt: Sequence[int], adapter: ToyAdapter | None = None, **how: Any) -> Answer:
        return self.ask([prompt], [adapter], **how)[0]

    @contextmanager
    def running(self, prompt: Sequence[int], adapter: ToyAdapter, steps: int = 3) -> Iterator[list[int]]:
        """A request that is in the middle of its answer, whose 60 tokens are in the list after the block."""
        from vllm import SamplingParams

        engine, params = (
            self.llm.llm_engine,
            SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, detokenize=False),
        )
        engine.add_request("running", {"prompt_token_ids": list(prompt)}, params, lora_request=lora_request(adapter))
        for _ in range(steps):
            engine.step()
        answer: list[int] = []
        try:
            yield answer
        finally:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    answer[:] = output.outputs[0].token_ids


def lora_request(adapter: ToyAdapter | None, in_place: bool = False) -> Any:
    from vllm.lora.request import LoRARequest

    return None if adapter is None else LoRARequest(adapter.name, adapter.number, adapter.path, load_inplace=in_place)


def _answer(output: Any) -> Answer:
    completion = output.outputs[0]
    logprobs_V = torch.full((VOCABULARY,), -torch.inf)
    if completion.logprobs:
        for token, entry in completion.logprobs[0].items():
            logprobs_V[token] = entry.logprob
    return Answer(logprobs_V, int(output.num_cached_tokens or 0), tuple(completion.token_ids))
