"""Cache keys: blocks that end at or before the activation are the base's own, later ones belong to these weights.

The stock function makes every key; only the LoRA request that it sees is hidden for a base block. So multimodal,
``cache_salt`` and prompt-embeds keys stay what they are in every block.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from alora.activation import shareable_blocks
from alora.vllm_plugin.carried_request import CarriedLoRARequest

_REMEMBERED_PREFIXES = 64


class _BaseView:
    """A request as the base would have sent it: no LoRA, everything else the request's own."""

    __slots__ = ("_request",)
    lora_request = None

    def __init__(self, request: Any) -> None:
        self._request = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def extra_keys_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``generate_block_hash_extra_keys`` with base-aligned keys."""

    @functools.wraps(original)
    def generate_block_hash_extra_keys(
        request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
    ) -> tuple[tuple[Any, ...] | None, int]:
        carried = request.lora_request
        if not isinstance(carried, CarriedLoRARequest):
            return original(request, start_token_idx, end_token_idx, start_mm_idx)
        if end_token_idx <= carried.activation_index:
            return original(_BaseView(request), start_token_idx, end_token_idx, start_mm_idx)
        keys, next_mm_idx = original(request, start_token_idx, end_token_idx, start_mm_idx)
        return (*(keys or ()), ("alora_weights", carried.weights_digest)), next_mm_idx

    return generate_block_hash_extra_keys


class BasePrefixes:
    """Base block hashes of the prompts seen last, so that requests on one prefix hash it once.

    A hundred adapters on one conversation ask for the same base hashes a hundred times. A lookup compares token ids,
    so a hash is never taken from a prompt that differs, and the ``cache_salt`` is part of the key. The last prompt of a
    first block serves conversations that grow; the whole prefixes serve those that are alive side by side behind one
    system prompt.
    """

    def __init__(self, block_size: int, capacity: int = _REMEMBERED_PREFIXES) -> None:
        self._block_size = block_size
        self._capacity = capacity
        self._prompts: OrderedDict[tuple[Any, ...], tuple[list[int], list[Any]]] = OrderedDict()
        self._whole: OrderedDict[tuple[Any, ...], list[Any]] = OrderedDict()

    def _key(self, request: Any, token_ids: list[int]) -> tuple[Any, ...]:
        return (request.cache_salt, *token_ids[: self._block_size])

    def base_blocks(self, request: Any) -> int:
        """Whole prompt blocks of ``request`` whose hash is the base's and depends on its token ids alone."""
        if request.mm_features or request.prompt_embeds is not None or request.prompt_token_ids is None:
            return 0
        length = len(request.prompt_token_ids)
        lora_request = request.lora_request
        if lora_request is None:
            return shareable_blocks(length, self._block_size)
        if not isinstance(lora_request, CarriedLoRARequest):
            return 0
        return shareable_blocks(min(lora_request.activation_index, length), self._block_size)

    def shared(self, request: Any, blocks: int) -> list[Any]:
        """Hashes of the longest run of the first ``blocks`` blocks that a remembered prompt begins with."""
        token_ids = request.prompt_token_ids
        key = self._key(request, token_ids)
        known = self._prompts.get(key)
        if known is None:
            return []
        self._prompts.move_to_end(key)
        seen_ids, hashes = known
        low, high = 1, min(blocks, len(hashes))
        if token_ids[: high * self._block_size] == seen_ids[: high * self._block_size]:
            if high == blocks:
                return hashes[:high]
            low = high
        whole = (request.cache_salt, *token_ids[: blocks * self._block_size])
        if whole in self._whole:
            self._whole.move_to_end(whole)
            return self._whole[whole]
        while low < high:  # the first block is equal (it is the key); find the last one that is
            middle = (low + high + 1) // 2
            end = middle * self._block_size
            low, high = (middle, high) if token_ids[:end] == seen_ids[:end] else (low, middle - 1)
        return hashes[:low]

    def remember(self, request: Any, hashes: list[Any]) -> None:
        """Keep the base hashes of a prompt for the next request that begins like it."""
        if not hashes:
            return
        token_ids = request.prompt_token_ids[: len(hashes) * self._block_size]
        self._prompts[self._key(request, token_ids)] = (token_ids, hashes)
        self._prompts.move_to_end(self._key(request, token_ids))
        self._whole[(request.cache_salt, *token_ids)] = hashes
        for kept in (self._prompts, self._whole):
            while len(kept) > self._capacity:
                kept.popitem(last=False)


def block_hasher_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``get_request_block_hasher`` whose hasher takes base blocks from :class:`BasePrefixes`."""

    @functools.wraps(original)
    def get_request_block_hasher(
        hash_block_size: int, caching_hash_fn: Callable[[Any], bytes], *args: Any, **kwargs: Any
    ) -> Any:
        stock = original(hash_block_size, caching_hash_fn, *args, **kwargs)
        if any(args) or any(kwargs.values()):
            return stock  # 0.33 with a drafter: a block's hash also covers tokens after the block
        prefixes = BasePrefixes(hash_block_size)

        def request_block_hasher(request: Any) -> list[Any]:
            if request.block_hashes or request.num_output_tokens:
                return stock(request)
            blocks = prefixes.base_blocks(request)
            if blocks == 0:
                return stock(request)
            shared = prefixes.shared(request, blocks)
            request.block_hashes.extend(shared)  # stock goes on from here
            try:
                hashes = shared + stock(request)
            finally:
                request.block_hashes.clear()
            if len(shared) < blocks:
                prefixes.remember(request, hashes[:blocks])
            return hashes

        return request_block_hasher

    return get_request_block_hasher
