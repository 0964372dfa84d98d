"""A base's config, read before anything of the size that it names is allocated, and the tensors that belong to it."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from alora.base import REMEDY
from alora.errors import BaseError
from alora.typed import leaves

_UNSUPPORTED_QUANTIZATION = {
    "gptq": "PEFT silently trains plain LoRA on GPTQ layers",
    "hqq": "PEFT silently trains plain LoRA on HQQ layers",
    "awq": "its kernels give no gradient that alora has checked",
}
_MOST_LAYERS = 1000  # the deepest published models have some 130; each one is built before its tensors are looked for
# As the families call it: num_hidden_layers, n_layer, decoder_layers, first_k_dense_replace. A config makes a list with
# an entry for each of them as it is read.
_LAYERS = ("layer", "layers", "first_k_dense_replace", "num_blocks", "attention_types")
_KINDS = ("pattern", "layer_types", "block_type")  # a letter or a name for each layer: hybrid_override_pattern


def read_config(location: str, options: Mapping[str, Any]) -> PretrainedConfig:
    """The config of the base at ``location``, a folder or a hub id, with sdpa attention.

    Raises:
        BaseError: it is not a config, or describes a base that alora refuses: quantized already, RoPE that depends on
            the prompt's length, a number that no base has.
    """
    require_buildable(location, options)
    config = AutoConfig.from_pretrained(location, **options)
    for key, value in leaves(config.to_dict()):
        if key.split(".")[-1] == "transformers_weights" and value is not None:
            raise BaseError(
                f"base {location}: {key} in its config names a file with weights for transformers alone; call it "
                "model.safetensors and remove the key"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise BaseError(f"base {location}: {key} is {value} in its config; {REMEDY}")
        if key.endswith("num_hidden_layers") and isinstance(value, int) and not 0 < value <= _MOST_LAYERS:
            raise BaseError(f"base {location}: {key} is {value} in its config, not 1 to {_MOST_LAYERS}; {REMEDY}")
        if key.endswith("rope_theta") and isinstance(value, int | float) and value <= 0:
            raise BaseError(f"base {location}: {key} is {value} in its config, not above 0; {REMEDY}")
    _refuse_by_name(config, location)
    # Whatever the file says, which counts for more than what from_pretrained is asked for: transformers fetches and
    # runs the kernels of a name like org/name.
    config._attn_implementation, config._experts_implementation = "sdpa", None  # those of nested configs, too
    return config


def require_buildable(location: str, options: Mapping[str, Any]) -> None:
    """Refuse a stored config that transformers should not make an object of: of no causal language model, with more
    layers than any base has, or one that calls them by a name of its own.

    Raises:
        BaseError: with what is wrong first.
    """
    stored, _ = PretrainedConfig.get_config_dict(location, revision=options["revision"])
    kind = stored.get("model_type")
    if isinstance(kind, str) and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not options["trust_remote_code"]:
        if "auto_map" in stored:
            raise BaseError(own_python(location))
        raise BaseError(
            f"base {location}: its config is of model_type {kind[:40]!r}, none of the causal language models that this "
            "transformers knows; name another base, or install the transformers that knows it"
        )
    waiting: list[tuple[str, Any]] = [("", stored)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            if "attribute_map" in value:
                raise BaseError(f"base {location}: attribute_map renames keys of its config; {REMEDY}")
            waiting += value.items()
        elif isinstance(value, str | list) and key.endswith(_KINDS) and len(value) > _MOST_LAYERS:
            found = f"of {len(value)} layers"
            raise BaseError(f"base {location}: {key} is {found} in its config, above {_MOST_LAYERS}; {REMEDY}")
        elif isinstance(value, list):
            waiting += [(key, item) for item in value]
        elif isinstance(value, int | float) and key.endswith(_LAYERS) and value > _MOST_LAYERS:
            found = str(value)[:40]
            raise BaseError(f"base {location}: {key} is {found} in its config, above {_MOST_LAYERS}; {REMEDY}")


def own_python(source: object) -> str:
    """Why a base that needs ``trust_remote_code`` is refused without."""
    return f"base {source!r} runs its own Python; read it, then set base.trust_remote_code=true on the command line"


def require_whole(loading_info: Mapping[str, Any], location: str) -> None:
    """Refuse a base of which transformers could not load every tensor: it fills the rest with random numbers.

    Args:
        loading_info: what ``from_pretrained(output_loading_info=True)`` says.

    Raises:
        BaseError: with the first tensor that is missing or of another shape, and their count.
    """
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
    moving = _rope_types(config.to_dict()) & {"dynamic", "longrope"}
    if moving:
        raise BaseError(
            f"base {location} uses {moving.pop()} RoPE, whose frequencies depend on the length of the whole prompt, so "
            "a prefix's KV is not its own; use a base with another rope_type"
        )


def _rope_types(parameters: Any) -> set[str]:
    """Every ``rope_type`` in a config: of nested configs and of each kind of layer, too."""
    if not isinstance(parameters, dict):
        return set()
    nested = [_rope_types(value) for value in parameters.values()]
    return {str(parameters["rope_type"])}.union(*nested) if "rope_type" in parameters else set().union(*nested)
