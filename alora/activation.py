"""The index where an adapter starts, counted three ways; every off-by-one of it is here.

A prompt of ``total`` tokens is ``prefix | suffix``. The *activation index* counts from the start and is the index of
the first adapted token, so it equals ``len(prefix_ids)``. PEFT counts the same index from the end (its
``alora_offsets``), and vLLM cares about it in whole cache blocks. Imports the standard library alone: the vLLM plugin,
the renderer and the trainer all use it.
"""

from collections.abc import Sequence


def peft_offset(total: int, activation_index: int) -> int:
    """Count the activation from the end, as ``peft.tuners.lora.variants.ALoraLinearVariant`` (0.21) expects.

    Raises:
        ValueError: the activation lies outside ``0 <= activation_index < total``: nothing would be adapted.
    """
    if not 0 <= activation_index < total:
        raise ValueError(f"activation index {activation_index} is outside a prompt of {total} tokens")
    return total - activation_index


def last_occurrence(token_ids: Sequence[int], invocation_ids: Sequence[int]) -> int | None:
    """Index of the first token of the last occurrence of ``invocation_ids``, or None.

    This is PEFT's own search (``peft.tuners.lora.variants.calculate_alora_offsets``, 0.21). alora's own prompts know
    their activation index; there the search only checks that PEFT would start at the same token. The vLLM plugin
    searches with it, because a served prompt may come from anyone.
    """
    width = len(invocation_ids)
    if width == 0:
        raise ValueError("invocation tokens are empty: they would match everywhere")
    wanted = list(invocation_ids)
    for start in range(len(token_ids) - width, -1, -1):
        if token_ids[start] == wanted[0] and list(token_ids[start : start + width]) == wanted:
            return start
    return None


def shareable_blocks(activation_index: int, block_size: int) -> int:
    """Number of whole cache blocks that end at or before the activation, so hold the base's own KV."""
    if block_size <= 0:
        raise ValueError(f"block size must be positive, not {block_size}")
    return max(activation_index, 0) // block_size
