"""Where an adapter's effect must show at the activation token, derived from the modules that it adapts.

K (or V) of layer n can depend on the adapter in two ways: layer n's own projection to K (or V) is adapted, or any
module of an earlier layer is, through the hidden state. So K of layer n must differ at the activation token when
``k_proj`` of layer n is adapted or when some layer before n holds an adapted module; V likewise; and the last layer's
output must differ when any layer holds one. An adapter of ``o_proj`` alone therefore shows in K and V from the layer
after its first, and one of the last layer's ``down_proj`` alone only in the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from alora.identity.capture import OUTPUT, Site

# Module names of transformers 5.19 that produce K and V; fused ones produce both.
_MAKES = {
    "k_proj": "K",
    "v_proj": "V",
    "key": "K",
    "value": "V",
    "kv_proj": "KV",
    "qkv_proj": "KV",
    "query_key_value": "KV",
    "c_attn": "KV",
    "Wqkv": "KV",
    "kv_a_proj_with_mqa": "KV",
    "kv_b_proj": "KV",
}
_LAYER = re.compile(r"\.(\d+)\.")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)$")


def adapted_modules(model: nn.Module) -> list[str]:
    """Names of the modules that a ``PeftModel`` adapts, as in the base's ``named_modules``."""
    from peft.tuners.lora import LoraLayer

    return [name for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def reached_sites(module_names: Iterable[str], layers: int) -> frozenset[Site]:
    """The sites that must differ at the activation token, for a base of ``layers`` layers.

    A module outside every layer (an embedding) reaches everything; the head reaches no site, only the logits.
    """
    sites: set[Site] = set()
    first_touched = layers
    for name in module_names:
        if _HEAD.search(name):
            continue
        found = _LAYER.search(name)
        layer = int(found.group(1)) if found else -1
        first_touched = min(first_touched, layer)
        for kind in _MAKES.get(name.rpartition(".")[2], "") if found else "":
            sites.add(Site(layer, kind))
    if first_touched < layers:
        sites.add(OUTPUT)
    sites.update(Site(layer, kind) for layer in range(first_touched + 1, layers) for kind in "KV")
    return frozenset(sites)
