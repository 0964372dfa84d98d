"""Read a prompt's keys and values out of vLLM's own cache, block by block.

To certify that an adapter's prefix is the base's, read the same prompt with and without the adapter, each computed from
scratch, and compare the bytes. How a block lays out its tokens is the attention backend's business (the CPU's packs
keys across them), so the block is the unit. A prompt whose activation is the first token of a block shows an adapter
that starts too early, one whose activation is the last token of a block shows one that starts too late.

Needs the engine core in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
"""

from collections.abc import Sequence
from typing import Any

import torch

from alora.vllm_plugin import compat


class CacheReader:
    """Reads KV from the cache of a ``vllm.LLM`` whose engine core runs in this process.

    Raises:
        RuntimeError: the engine core runs elsewhere, or has requests in flight.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._core = compat.engine_core(llm)

    def scrub(self, value: float) -> None:
        """Overwrite the whole cache and forget every prefix, so that nothing read later was there before."""
        self._forget()
        for tensor in compat.kv_tensors(self._core):
            tensor.fill_(value)

    def read(self, token_ids: Sequence[int], lora_request: Any = None, *, fresh: bool = True) -> list[torch.Tensor]:
        """Run a prompt and return, per layer, the bytes of the blocks that hold its K and V: uint8, (blocks, bytes).

        The last block may be partly filled; its other slots hold whatever they held. With ``fresh`` the prompt is
        computed from its first token; without, cached blocks are used, and what they hold is what is returned.
        """
        if fresh:
            self._forget()
        self._start(token_ids, lora_request)
        try:
            request = compat.run_prompt(self._llm, self._core)
            blocks = torch.tensor(compat.request_blocks(self._core, request))
            return [self._bytes(tensor, blocks) for tensor in compat.kv_tensors(self._core)]
        finally:
            compat.abort_all(self._llm, self._core)

    def _start(self, token_ids: Sequence[int], lora_request: Any) -> None:
        """Add one request that is still running when its prompt has been computed."""
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False
        )  # 2: it still runs after
        prompt = {"prompt_token_ids": list(token_ids)}
        self._llm.llm_engine.add_request("alora-cache-reader", prompt, params, lora_request=lora_request)

    def _forget(self) -> None:
        if self._llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not reset its prefix cache: requests are in flight")

    def _bytes(self, tensor: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        by_block = tensor.movedim(compat.kv_block_axis(self._core, tensor), 0)
        return by_block[blocks.to(tensor.device)].flatten(1).contiguous().cpu().view(torch.uint8)
