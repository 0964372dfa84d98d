"""Whether an adapter's weights are what its configuration says they are.

vLLM goes by the file: it runs whatever is there, of any rank. PEFT goes by the configuration, and refuses the rest. An
aLoRA whose two disagree would answer, and not as PEFT does.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from alora.errors import AdapterError
from alora.vllm_plugin.adapter_config import AdapterConfig, read_json
from alora.wire.weights import CONFIG, WEIGHTS

_KEY_PREFIX = "base_model.model."
_OF_THE_BASE = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")  # saved by PEFT, and skipped by vLLM


def require_sound(copy: str, shown: str, config: AdapterConfig) -> None:
    """AdapterError for weights that are no numbers, so that none of their answers is one.

    Also for weights of a head that the configuration does not name, and for an aLoRA that does not fit it: vLLM goes
    by the file, and would run them. It prefers this file to the pickles, which an aLoRA must not be: none is read here.
    """
    file = Path(copy, WEIGHTS)
    if config.is_alora and not file.is_file():
        raise AdapterError(f"{shown}: no {WEIGHTS} is there, the only weights of an aLoRA; save it with safetensors")
    if not file.is_file():
        return
    try:
        with safe_open(file, "pt") as tensors:
            _require_sound(tensors, copy, shown, config)
    except SafetensorError as error:
        raise AdapterError(f"{shown}/{WEIGHTS} is damaged ({error}); copy or export the adapter again") from error


def _require_sound(tensors: Any, copy: str, shown: str, config: AdapterConfig) -> None:
    names = list(tensors.keys())
    head = [name for name in names if ".lm_head." in f".{name}"]
    if head and not config.adapts_head:
        raise AdapterError(f"{shown}: {head[0]} is there, and target_modules of {CONFIG} does not name lm_head")
    if config.is_alora:  # by the shapes alone, before a value is read
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
        _require_fitting(shapes, read_json(copy, CONFIG), shown)
    for name in names:
        if not _are_numbers(tensors.get_tensor(name)):
            raise AdapterError(
                f"{shown}: {name} holds NaN or infinity, or no floating-point numbers; export the adapter again"
            )


def _are_numbers(tensor: Any) -> bool:
    return tensor.is_floating_point() and bool(torch.isfinite(tensor.float()).all())


def _require_fitting(shapes: Mapping[str, tuple[int, ...]], config: dict[str, Any], shown: str) -> None:
    """AdapterError for tensors that are no LoRA weights of linear layers, or of another rank than ``config`` says."""
    for name, shape in shapes.items():
        if name.endswith(_OF_THE_BASE):
            continue
        module, _, kind = name.removesuffix(".weight").rpartition(".lora_")
        # vLLM takes names without the prefix, too; PEFT leaves such weights out.
        if not name.startswith(_KEY_PREFIX) or kind not in ("A", "B") or len(shape) != 2:
            raise AdapterError(
                f"{shown}: {name} of shape {shape} is not a LoRA weight of a linear layer, as PEFT's are"
            )
        other = "B" if kind == "A" else "A"
        if f"{module}.lora_{other}.weight" not in shapes:
            raise AdapterError(f"{shown}: {module} has no {other}")
        rank, found = _rank(config, module.removeprefix(_KEY_PREFIX)), shape[0 if kind == "A" else 1]
        if found != rank:
            raise AdapterError(f"{shown}: {name} has rank {found}, and {CONFIG} says {rank}; export the adapter again")


def _rank(config: dict[str, Any], module: str) -> Any:
    """As ``peft.utils.other.get_pattern_key``: of the first key that matches the end of the module's path."""
    for key, rank in (config.get("rank_pattern") or {}).items():
        if re.match(rf"(.*\.)?({key})$", module):
            return rank
    return config.get("r")
