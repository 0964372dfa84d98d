"""Cache keys: blocks that end at or before the activation are the base's own, later ones belong to these weights.

The stock function makes every key of the base, with the LoRA request hidden from it. So multimodal, ``cache_salt`` and
prompt-embeds keys stay what they are in every block. A block with adapted tokens adds one :class:`AdaptedKey`.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

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


class AdaptedKey(NamedTuple):
    """What decides an adapted block's content besides its tokens, its base keys and the blocks before it."""

    weights_digest: str
    start: int  # of the adapter within the block; two invocations in one block give it two masks


def adapted_key(carried: CarriedLoRARequest, start_token_idx: int, end_token_idx: int) -> AdaptedKey | None:
    """None for a block of the base."""
    if end_token_idx <= carried.activation_index:  # ends before the first adapted token
        return None
    return AdaptedKey(carried.weights_digest, max(carried.activation_index - start_token_idx, 0))


def extra_keys_patch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``generate_block_hash_extra_keys`` with base-aligned keys."""

    @functools.wraps(original)
    def generate_block_hash_extra_keys(
        request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
    ) -> tuple[tuple[Any, ...] | None, int]:
        carried = request.lora_request
        if not isinstance(carried, CarriedLoRARequest):
            return original(request, start_token_idx, end_token_idx, start_mm_idx)
        # With the LoRA request in sight, stock would put the adapter into the key of every block.
        keys, next_mm_idx = original(_BaseView(request), start_token_idx, end_token_idx, start_mm_idx)
        adapted = adapted_key(carried, start_token_idx, end_token_idx)
        if adapted is None:
            return keys, next_mm_idx
        # One tuple under a name of ours: it equals no key of vLLM's own.
        return (*(keys or ()), ("alora", *adapted)), next_mm_idx

    return generate_block_hash_extra_keys


class PrefixKey(NamedTuple):
    """What decides the base hashes of a prompt's first blocks."""

    cache_salt: str | None
    token_ids: bytes  # encoded, which is half the price of comparing lists of ints


class BasePrefixes:
    """Base block hashes of the prompts seen last, so that requests on one prefix hash it once.

    A hundred adapters on one conversation ask for the same base hashes a hundred times. A lookup compares token ids,
    so a hash is never taken from a prompt that differs. Each prompt is known as a whole, which serves the adapters of
    one conversation, and by its first block, which serves conversations that grow.
    """

    def __init__(self, block_size: int, capacity: int = _REMEMBERED_PREFIXES) -> None:
        self._block_size = block_size
        self._capacity = 2 * capacity  # each prompt has two keys
        self._seen: OrderedDict[PrefixKey, tuple[list[int], list[Any]]] = OrderedDict()

    def _key(self, request: Any, blocks: int) -> PrefixKey:
        token_ids = request.prompt_token_ids[: blocks * self._block_size]
        return PrefixKey(request.cache_salt, msgspec.msgpack.encode(token_ids))

    def _known(self, key: PrefixKey) -> tuple[list[int], list[Any]] | None:
        if key in self._seen:
            self._seen.move_to_end(key)
        return self._seen.get(key)

    def base_blocks(self, request: Any) -> int:
        """Whole prompt blocks of ``request`` whose hash is the base's and depends on its token ids alone."""
        # The hash of an image or an embedding is not in the token ids, which are all that is compared here.
        if request.mm_features or request.prompt_embeds is not None or request.prompt_token_ids is None:
            return 0
        length = len(request.prompt_token_ids)
        lora_request = request.lora_request
        if lora_request is None:
            return shareable_blocks(length, self._block_size)
        if not isinstance(lora_request, CarriedLoRARequest):
            return 0
        return shareable_blocks(lora_request.activation_index, self._block_size)

    def shared(self, request: Any, blocks: int) -> list[Any]:
        """Hashes of the longest run of the first ``blocks`` blocks that a remembered prompt begins with."""
        whole = self._known(self._key(request, blocks))
        if whole is not None:
            return whole[1][:blocks]
        known = self._known(self._key(request, 1))
        if known is None:
            return []
        token_ids, (seen_ids, hashes) = request.prompt_token_ids, known
        low, high = 1, min(blocks, len(hashes))  # the first block is equal: it is the key
        middle = high
        while low < high:
            end = middle * self._block_size
            # Ids decide, never hashes: no block is shared on a guess.
            low, high = (middle, high) if token_ids[:end] == seen_ids[:end] else (low, middle - 1)
            middle = (low + high + 1) // 2
        return hashes[:low]

    def remember(self, request: Any, hashes: list[Any]) -> None:
        """Keep the base hashes of a prompt for the next request that begins like it."""
        prefix = (request.prompt_token_ids[: len(hashes) * self._block_size], hashes)
        for blocks in {1, len(hashes)}:
            self._seen[self._key(request, blocks)] = prefix
            self._seen.move_to_end(self._key(request, blocks))
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)


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
            if request.block_hashes or request.num_output_tokens:  # a request that goes on, not one that starts
                return stock(request)
            blocks = prefixes.base_blocks(request)
            if blocks == 0:
                return stock(request)
            shared = prefixes.shared(request, blocks)
            request.block_hashes.extend(shared)  # stock goes on from here
            try:
                hashes = shared + stock(request)
            finally:
                request.block_hashes.clear()  # the caller extends it by what is returned
            if len(shared) < blocks:
                prefixes.remember(request, hashes[:blocks])
            return hashes

        return request_block_hasher

    return get_request_block_hasher


def zeroed_blocks_patch(original: Callable[..., Any]) -> Any:
    """``KVCacheConfig.needs_kv_cache_zeroing`` of every cache: vLLM then clears a block before a request gets it."""
    # An adapter whose finite weights overflow leaves NaN in its blocks. Attention reads the last block of a prompt
    # whole, and behind its mask 0 * NaN is NaN: in the answer of whoever has the block next.
    return property(functools.wraps(original)(lambda self: True))
