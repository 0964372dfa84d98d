"""vLLM in this process: the same prompts and verdicts as the in-process scorer, from the engine that serves traffic."""

import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch
from transformers import AutoConfig

from alora.adapter.folder import save_adapter
from alora.base.load import LoadedBase
from alora.bundle.read import Bundle
from alora.errors import AdapterError, BaseError, CheckFailed, MissingDependency, one_line
from alora.prompt.render import Prefix, Question, Suffix
from alora.vllm_plugin import register, status

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
LEAST_LENGTH = 4608  # tokens that an engine takes, where the base does
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's max_lora_rank takes (vllm.config.lora, 0.26 to 0.33)


def require_unquantized(base: LoadedBase) -> None:
    """BaseError for a quantized base: vLLM runs the stored weights, for which a threshold fitted here does not hold.

    The same adapter on the stored weights needs a parity run and a threshold of its own first.
    """
    if (quantization := base.fingerprint.quantization) != "none":
        raise BaseError(
            f"scorer=vllm runs base {base.source} as it is stored, and this one is loaded in {quantization}; make a "
            "bundle for the stored base first, with its own parity run and threshold: "
            "alora recalibrate artifact=DIR base.quantization=none data.validation=FILE"
        )


@dataclass(frozen=True)
class ServedAdapter:
    """One PEFT folder as vLLM knows it. The name holds the digest: vLLM keys cached blocks by name and path."""

    name: str
    folder: Path
    rank: int

    @classmethod
    def of(cls, bundle: Bundle) -> Self:
        """A bundle under the name that clients ask for."""
        return cls(bundle.served_name, bundle.folder, bundle.weights.spec.rank)


class Engine:
    """An offline ``vllm.LLM`` of ``base`` (a folder or hub id) with the adapters that may be asked for; ``options`` of
    ``vllm.LLM`` go before ours. CheckFailed where the plugin is not active: an aLoRA would not be served as one."""

    def __init__(
        self,
        base: str,
        adapters: Sequence[ServedAdapter],
        dtype: str,
        max_model_len: int = LEAST_LENGTH,
        **options: Any,
    ) -> None:
        prepare_environment()
        names = vllm_api()
        register()
        if not status().active:
            raise CheckFailed(f"the vLLM plugin is not active: {status().reason}; `alora doctor` says more")
        self.block = block_size()
        self._ids = {adapter.name: number for number, adapter in enumerate(adapters, start=1)}
        self._adapters = {adapter.name: adapter for adapter in adapters}
        # logprobs over the label tokens alone need the processed mode: raw ones hold the top tokens, not ours.
        self.longest = min(max_model_len, _longest(base) or max_model_len)
        ours: dict[str, Any] = {
            "dtype": dtype,
            "enable_lora": True,
            "max_loras": min(len(adapters), 16),
            "max_cpu_loras": max(len(adapters), 16),
            "max_lora_rank": served_rank(max(adapter.rank for adapter in adapters)),
            "max_model_len": self.longest,
            "block_size": self.block,
            "enable_prefix_caching": True,
            "enforce_eager": True,
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "seed": 0,
        }
        try:
            self.llm: Any = names.vllm.LLM(model=base, **ours | options)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise BaseError(f"vLLM does not run {base}: {one_line(error)}") from error

    @classmethod
    def of(cls, bundles: Sequence[Bundle], base: LoadedBase, location: str) -> Self:
        """The engine of ``bundles`` on ``base``, which lies at ``location``; BaseError where it is quantized here.

        vLLM gets the weights that were read, in a folder of the engine's own: it reads at the first question, and by
        then the bundle's files may be others.
        """
        require_unquantized(base)
        own = tempfile.TemporaryDirectory(prefix="alora-", ignore_cleanup_errors=True)
        adapters = []
        for number, bundle in enumerate(bundles, start=1):
            adapters.append(replace(ServedAdapter.of(bundle), folder=Path(own.name, str(number))))
            save_adapter(bundle.weights, adapters[-1].folder, base.source)
        longest = max(bundle.manifest.prompt.max_prefix_tokens + len(bundle.suffix.token_ids) for bundle in bundles)
        engine = cls(location, adapters, base.dtype, max(LEAST_LENGTH, longest + 1))  # and the answer's own token
        weakref.finalize(engine, own.cleanup)
        return engine

    def close(self) -> None:
        """End the engine and free its memory, so that another can start here.

        It takes vLLM's process groups with it, so no other engine of this process may be in use.
        """
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        vllm_api().cleanup_dist_env_and_memory()

    def request(self, name: str | None) -> Any:
        """vLLM's own request object for one adapter; None for the base."""
        if name is None:
            return None
        return vllm_api().LoRARequest(name, self._ids[name], str(self._adapters[name].folder))

    def score_rows(self, questions: Sequence[Question]) -> list[list[torch.Tensor]]:
        """As :meth:`alora.prefix.scorer.Scorer.score_rows`: ``asked`` counts the adapters in their order."""
        names = list(self._adapters)
        return [
            self.label_logits(question.prefix, question.suffixes, [names[index] for index in question.asked])
            for question in questions
        ]

    def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], names: Sequence[str | None]
    ) -> list[torch.Tensor]:
        """Log-probabilities ``[L]`` over each policy's labels: logits up to a constant, which changes no verdict."""
        prompts = [{"prompt_token_ids": [*prefix.token_ids, *suffix.token_ids]} for suffix in suffixes]
        params = [label_params(suffix) for suffix in suffixes]
        requests = [self.request(name) for name in names]
        outputs = self.llm.generate(prompts, params, lora_request=requests, use_tqdm=False)
        return [torch.tensor(label_logprobs(suffix, output)) for suffix, output in zip(suffixes, outputs, strict=True)]


def vllm_api() -> ModuleType:
    """:mod:`alora.client.vllm_names`; MissingDependency where vLLM is not installed."""
    try:
        from alora.client import vllm_names as names  # vLLM, once prepare_environment() has run
    except ImportError as error:
        raise MissingDependency(f"scorer=vllm needs vLLM ({error}); pip install 'alora-toolkit[vllm]'") from error
    return names


def label_params(suffix: Suffix) -> Any:
    """vLLM's ``SamplingParams`` that ask for the label tokens' own probabilities, by ``processed_logprobs``."""
    labels = list(suffix.label_token_ids)
    return vllm_api().SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=len(labels), allowed_token_ids=labels, detokenize=False
    )


def label_logprobs(suffix: Suffix, output: Any) -> list[float]:
    """The labels' log-probabilities from vLLM's ``RequestOutput``, in the order of the labels; AdapterError where one
    is missing."""
    logprobs = output.outputs[0].logprobs[0]
    if missing := [label for label in suffix.label_token_ids if label not in logprobs]:
        raise AdapterError(f"label tokens {missing} have no probability, as when an answer is not a number")
    return [logprobs[label].logprob for label in suffix.label_token_ids]


def prepare_environment() -> None:
    """Settings that vLLM reads at import. The engine core stays in this process, where its cache can be read."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is for verdicts
    if not on_gpu():
        for name, value in CPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)


def on_gpu() -> bool:
    return torch.cuda.is_available()


def block_size() -> int:
    """Tokens of a cache block: the smallest that the attention backends of each platform take."""
    return 16 if on_gpu() else 32


def served_rank(rank: int) -> int:
    """The smallest ``max_lora_rank`` that holds an adapter of ``rank``; AdapterError above vLLM's largest."""
    if rank > RANKS[-1]:
        raise AdapterError(f"rank {rank} is more than vLLM serves ({RANKS[-1]}); train a smaller adapter")
    return min(served for served in RANKS if rank <= served)


def _longest(base: str) -> int | None:
    return getattr(AutoConfig.from_pretrained(base, trust_remote_code=False), "max_position_embeddings", None)
