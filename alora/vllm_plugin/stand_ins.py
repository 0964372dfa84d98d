"""What the self-test and the tests run vLLM's own code on: a request, and the batch of each model runner."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm.v1.worker.gpu_input_batch import InputBatch


@contextmanager
def block_hashing(block_size: int) -> Iterator[Callable[..., list[bytes]]]:
    """Block hashes as a real ``Request`` computes them, for the self-test: ``hashes(ids, lora, salt, answer, ...)``.

    The seed that vLLM keeps in a global is left as it was found.
    """
    names = ("NONE_HASH", "_NONE_HASH_SEED")
    before = {name: vars(kv_cache_utils)[name] for name in names if name in vars(kv_cache_utils)}
    function = get_hash_fn_by_name("sha256")
    kv_cache_utils.init_none_hash(function)
    hasher = kv_cache_utils.get_request_block_hasher(block_size, function)

    def hashes(
        token_ids: list[int],
        lora_request: Any = None,
        salt: str | None = None,
        answer: Sequence[int] = (),
        **more: Any,
    ) -> list[bytes]:
        request = Request(
            request_id="self-test",
            prompt_token_ids=list(token_ids),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            lora_request=lora_request,
            cache_salt=salt,
            block_hasher=hasher,
            **more,
        )
        for token in answer:
            request.append_output_token_ids(token)
        return list(request.block_hashes)

    try:
        yield hashes
    finally:
        for name in names:
            if name in before:
                setattr(kv_cache_utils, name, before[name])
            else:
                kv_cache_utils.__dict__.pop(name, None)


def v1_example(lora_request: Any, scheduled: int = 16) -> tuple[Any, Any]:
    """A one-row stand-in for a V1 batch that makes its LoRA inputs with vLLM's own method, and its scheduled tokens."""
    batch: Any = SimpleNamespace(
        num_reqs=1,
        req_ids=["row"],
        num_computed_tokens_cpu=np.zeros(1, dtype=np.int32),
        request_lora_mapping=np.array([lora_request.lora_int_id]),
        lora_id_to_lora_request={lora_request.lora_int_id: lora_request},
    )
    batch.make_lora_inputs = functools.partial(InputBatch.make_lora_inputs, batch)
    return batch, np.array([scheduled], dtype=np.int32)


def v2_example(lora_request: Any, computed: int, scheduled: int = 16) -> tuple[Any, tuple[Any, ...]]:
    """A real V2 LoRA state with one request in it, and the arguments of its ``make_lora_inputs``."""
    state: Any = LoraState(2)
    state.add_request("row", 1, lora_request)
    state._alora_computed = {"row": computed}
    return state, (["row"], np.array([1]), np.array([scheduled]))
