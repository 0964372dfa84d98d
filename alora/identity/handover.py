"""Give the base's cached prefix to the adapter, as a serving engine does, and check the cache afterwards.

Two claims. Exact: the suffix forward leaves every byte of the cached prefix as it was. Bounded: the logits equal those
of the adapter's full-sequence run within :data:`BOUNDS`; they cannot be exact, because kernels tile by shape.
"""

import math

import torch
from torch import nn
from transformers import DynamicCache

from alora.identity.capture import Call, cache_sites, forward
from alora.identity.certificate import HandoverRecord
from alora.identity.compare import bits_differ

# Largest absolute difference of logits over their largest absolute value, by dtype. In bfloat16, twenty adapters on
# SmolLM2-135M were at most 0.053 off by rounding alone; eight of them, at least 0.13 off with the adapter off.
BOUNDS = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}


def hand_over(base: nn.Module, adapter: nn.Module, call: Call, full_logits_V: torch.Tensor) -> HandoverRecord:
    """Prefix on ``base``, suffix on ``adapter`` over the same cache; ``call`` holds one row, without padding."""
    (split,) = call.activation_B
    cache = DynamicCache()
    head, tail = (slice(None), slice(None, split)), (slice(None), slice(split, None))
    forward(base, call.input_ids_BT[head], call.attention_mask_BT[head], call.position_ids_BT[head], cache)
    before = {site: tensor.clone() for site, tensor in cache_sites(cache).items()}
    logits_V = forward(
        adapter,
        call.input_ids_BT[tail],
        call.attention_mask_BT,
        call.position_ids_BT[tail],
        cache,
        alora_offsets=[call.tokens - split],
    )[0, -1]
    after = cache_sites(cache)
    changed = sum(int(bits_differ(kept, after[site][:, :split]).sum()) for site, kept in before.items())
    wanted_V = full_logits_V.double()
    error = float((logits_V.double() - wanted_V).abs().max() / wanted_V.abs().max())
    dtype = str(full_logits_V.dtype).removeprefix("torch.")
    elements = sum(tensor.numel() for tensor in before.values())
    passed = changed == 0 and error <= BOUNDS[dtype]  # NaN is not
    return HandoverRecord(call.name, elements, changed, error if math.isfinite(error) else None, BOUNDS[dtype], passed)
