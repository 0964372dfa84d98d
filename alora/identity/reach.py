"""Where an adapter's effect must show at the activation token, derived from the modules that it adapts.

K (or V) of layer n can depend on the adapter in two ways: layer n's own projection to K (or V) is adapted, or any
module of an earlier layer is, through the hidden state. So K of layer n must differ at the activation token when
``k_proj`` of layer n is adapted or when some layer before n holds an adapted module; V likewise; and the last layer's
output must differ when any layer holds one. An adapter of ``o_proj`` alone therefore shows in K and V from the layer
after its first, and one of the last layer's ``down_proj`` alone only in the output.

One layer of an adapter is enough for all of that, so each adapted module is also checked by itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from alora.errors import AdapterError
from alora.identity.capture import OUTPUT, Call, Site
from alora.identity.compare import bits_differ

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


def adapted_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that a ``PeftModel`` adapts, by their names in the base."""
    return {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }


@contextmanager
def record_active(modules: Mapping[str, Any], call: Call, active: set[str]) -> Iterator[None]:
    """Add to ``active`` each module that, in runs of ``call`` inside the block, changes a row's first activated token.

    Each is compared to its own base layer on the same input: a difference that comes from an earlier layer does not
    count. The head gets the last token alone, so that token is compared there."""
    base: dict[str, torch.Tensor] = {}

    def rows_of(name: str, output_BTD: torch.Tensor) -> torch.Tensor:
        if output_BTD.ndim != 3:
            raise AdapterError(
                f"the base calls {name} on the tokens of all rows in one dimension {tuple(output_BTD.shape)}, so "
                "neither PEFT's aLoRA nor this check knows which of them are activated; train the adapter without "
                f"{name.rpartition('.')[2]} in adapter.targets"
            )
        positions = call.activation_B if output_BTD.shape[1] == call.tokens else [-1] * len(call.activation_B)
        return output_BTD[range(len(positions)), positions]

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: base.__setitem__(name, rows_of(name, output))

    def judge(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if bits_differ(base[name], rows_of(name, output)).any():
                active.add(name)

        return hook

    hooks = [module.base_layer.register_forward_hook(keep(name)) for name, module in modules.items()]
    hooks += [module.register_forward_hook(judge(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def reached_sites(module_names: Iterable[str], layers: int) -> frozenset[Site]:
    """The sites that must differ at the activation token, for a base of ``layers`` layers.

    A module outside every layer (an embedding) reaches everything; the head reaches no site, only the logits.
    """
    sites: set[Site] = set()
    first_touched = layers
    for name in module_names:
        if _HEAD.search(name):
            continue
        numbered = _LAYER.search(name)
        layer = int(numbered.group(1)) if numbered else -1
        first_touched = min(first_touched, layer)
        for kind in _MAKES.get(name.rpartition(".")[2], "") if numbered else "":
            sites.add(Site(layer, kind))
    if first_touched < layers:
        sites.add(OUTPUT)
    sites.update(Site(layer, kind) for layer in range(first_touched + 1, layers) for kind in "KV")
    return frozenset(sites)
