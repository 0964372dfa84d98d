"""A base's config, and the tensors that belong to it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from alora.base import REMEDY
from alora.config.environment import debugging
from alora.errors import BaseError
from alora.text import leaves

_UNSUPPORTED_QUANTIZATION = {
    "gptq": "PEFT silently trains plain LoRA on GPTQ layers",
    "hqq": "PEFT silently trains plain LoRA on HQQ layers",
    "awq": "its kernels give no gradient that alora has checked",
}


def read_config(location: str, options: Mapping[str, Any]) -> PretrainedConfig:
    """The config of the base at ``location``, a folder or a hub id, with sdpa attention."""
    config = AutoConfig.from_pretrained(location, **options)
    _refuse_by_name(config, location)
    # Whatever the file says, which counts for more than what from_pretrained is asked for: transformers fetches and
    # runs the kernels of a name like org/name.
    config._attn_implementation, config._experts_implementation = "sdpa", None  # those of nested configs, too
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' bar over tensors that are on disk already (the bars of a download are the hub's and stay), and
    its report on tensors that are missing or misshapen, which :func:`require_whole` refuses."""
    if debugging():
        yield
        return
    before, level = logging.set_tqdm_hook(_without_bar), logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
        logging.set_verbosity(level)


def _without_bar(make: Any, args: Any, options: dict[str, Any]) -> Any:
    return make(*args, **options | {"disable": True})


def require_whole(loading_info: Mapping[str, Any], location: str) -> None:
    """Refuse a base of which transformers could not load every tensor: it fills the rest with random numbers.
    ``loading_info`` is what ``from_pretrained(output_loading_info=True)`` says."""
    if misshapen := sorted(loading_info["mismatched_keys"]):
        name, stored, wanted = misshapen[0]
        raise BaseError(
            f"base {location}: tensor {name} is {tuple(stored)} in its files and {tuple(wanted)} by its config "
            f"({len(misshapen)} tensors of another shape); {REMEDY}"
        )
    if missing := sorted(loading_info["missing_keys"]):
        raise BaseError(f"base {location}: its files lack tensor {missing[0]} ({len(missing)} missing); {REMEDY}")


def _refuse_by_name(config: Any, location: str) -> None:
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        method = str(getattr(method, "value", method)).lower()
        reason = _UNSUPPORTED_QUANTIZATION.get(method, "alora has checked no gradient through its kernels")
        raise BaseError(
            f"base {location} is quantized with {method}, which alora refuses: {reason}; use its bf16 base, with "
            "base.quantization=nf4 for a base in four bits"
        )
    for key, value in leaves(config.to_dict()):  # of nested configs and of each kind of layer, too
        name = key.rpartition(".")[2]
        if name == "transformers_weights" and value is not None:
            raise BaseError(
                f"base {location}: {key} in its config names a file with weights for transformers alone; call it "
                "model.safetensors and remove the key"
            )
        if name == "rope_type" and value in ("dynamic", "longrope"):
            raise BaseError(
                f"base {location} uses {value} RoPE, whose frequencies depend on the length of the whole prompt, so "
                "a prefix's KV is not its own; use a base with another rope_type"
            )
