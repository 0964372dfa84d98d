"""Which adapter each token of a step gets: none before the activation, in vLLM's V1 and V2 model runners.

vLLM's kernels take a LoRA id per token and read id 0 as "no adapter", so no layer needs to change and every target
module and rank that vLLM's LoRA serves works.
"""

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.adapter_config import claims_alora
from alora.vllm_plugin.carried_request import CarriedLoRARequest

NO_ADAPTER = 0
_of_prompt_tokens = ContextVar("_of_prompt_tokens", default=False)


def mask_tokens(
    token_lora_ids: Sequence[int], rows: Sequence[tuple[Any, int]], scheduled: Sequence[int]
) -> tuple[int, ...]:
    """vLLM's token-to-LoRA-id mapping, with the tokens before each row's activation set to :data:`NO_ADAPTER`.

    A row is its LoRA request or None, and the tokens computed before this step; ``scheduled`` are its tokens in it.
    AdapterError for an aLoRA request without an activation: it did not come through the patched engine core.
    """
    masked = list(token_lora_ids)
    start = 0
    for (lora_request, computed), count in zip(rows, scheduled, strict=True):
        if isinstance(lora_request, CarriedLoRARequest):
            # What lies before the activation, less what earlier steps did, at most this step's tokens.
            base = min(max(lora_request.activation_index - computed, 0), int(count))
            masked[start : start + base] = [NO_ADAPTER] * base
        elif lora_request is not None:
            _refuse_uncarried(lora_request)
        start += int(count)
    return tuple(masked)


_claims_alora = functools.lru_cache(maxsize=4096)(claims_alora)  # asked in every step


def _refuse_uncarried(lora_request: Any) -> None:
    if _claims_alora(lora_request.lora_path):
        raise AdapterError(
            f"aLoRA adapter {lora_request.lora_name!r} reached the model without an activation: the engine core that "
            "sent it runs without the alora plugin"
        )


class _MaskedBatch:
    """A V1 input batch whose LoRA inputs are masked; everything else is the batch's own."""

    def __init__(self, runner: Any, input_batch: Any) -> None:
        self._runner = runner
        self._input_batch = input_batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._input_batch, name)

    def make_lora_inputs(self, num_scheduled_tokens: Any, num_sampled_tokens: Any) -> Any:
        prompts, tokens, requests = self._input_batch.make_lora_inputs(num_scheduled_tokens, num_sampled_tokens)
        if requests:
            # The batch keeps one request per id, and two prompts of one adapter start at different tokens.
            rows = compat.v1_rows(self._runner, self._input_batch)
            tokens = mask_tokens(tokens, rows, num_scheduled_tokens)
        return prompts, tokens, requests


def v1_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LoRAModelRunnerMixin.set_active_loras`` on a masked batch."""

    @functools.wraps(original)
    def set_active_loras(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, _MaskedBatch(self, input_batch), *args, **kwargs)

    return set_active_loras


def v2_positions_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``GPUModelRunner.prepare_inputs`` that leaves the step's positions where the mask finds them."""

    @functools.wraps(original)
    def prepare_inputs(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self.lora_state._alora_computed = compat.v2_computed_tokens(scheduler_output)
        return original(self, scheduler_output, *args, **kwargs)

    return prepare_inputs


def v2_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LoraState.make_lora_inputs``, masked; without positions it raises rather than guess."""

    @functools.wraps(original)
    def make_lora_inputs(self: Any, req_ids: Any, idx_mapping: Any, num_scheduled_tokens: Any) -> Any:
        prompts, tokens, requests = original(self, req_ids, idx_mapping, num_scheduled_tokens)
        if requests:
            computed = self._alora_computed  # AttributeError rather than a guess, where prepare_inputs did not run
            rows = [(self.lora_requests.get(req_id), computed[req_id]) for req_id in req_ids]
            tokens = mask_tokens(tokens, rows, num_scheduled_tokens)
        return prompts, tokens, requests

    return make_lora_inputs


def prompt_logprobs_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """What computes ``prompt_logprobs`` in a model runner, with every head as the base's.

    A request whose own adapter has the head is refused before, so the rows are the base's or of an adapter without it.
    """

    @functools.wraps(original)
    def compute(*args: Any, **kwargs: Any) -> Any:
        before = _of_prompt_tokens.set(True)
        try:
            return original(*args, **kwargs)
        finally:
            _of_prompt_tokens.reset(before)

    return compute


def head_logits_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``LogitsProcessorWithLoRA._get_logits`` that adapts sampled rows only. Stock indexes adapters by sampled row, so
    on rows of prompt logprobs it would apply the wrong ones.
    """

    @functools.wraps(original)
    def _get_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _of_prompt_tokens.get():
            return compat.unadapted_logits(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return _get_logits
