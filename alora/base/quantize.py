"""A base in four bits: NF4 by bitsandbytes, as QLoRA has it (Dettmers et al. 2023, section 3).

Every linear layer but the head holds 4-bit codes of the NormalFloat grid, one float32 scale for each 64 weights, and
computes in the base's dtype after unpacking them. The scales are not quantized a second time: it would save 0.4 bits a
weight, and vLLM's own bitsandbytes loader does not do it either.
"""

from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from alora.errors import BaseError, MissingDependency

NF4 = "nf4"
BLOCK = 64  # weights that share one scale; bitsandbytes' own default
SETTINGS = f"bitsandbytes, blocks of {BLOCK}, scales in float32, head and embeddings kept"


def nf4_config(dtype: torch.dtype) -> BitsAndBytesConfig:
    """What transformers needs to quantize a base while it is loaded, computing in ``dtype``."""
    require_nf4(dtype)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=NF4,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=False,
    )


def require_nf4(dtype: torch.dtype) -> ModuleType:
    """bitsandbytes; MissingDependency or BaseError when a base cannot be quantized here to compute in ``dtype``."""
    try:
        import bitsandbytes  # optional
    except ImportError as error:
        raise MissingDependency(
            f"base.quantization=nf4 needs bitsandbytes ({error}); pip install 'alora-toolkit[quantization]'"
        ) from error
    name = str(dtype).removeprefix("torch.")
    if name not in ("float32", "bfloat16"):
        raise BaseError(f"base.quantization=nf4 does not compute in {name}; use base.dtype=float32 or bfloat16")
    return bitsandbytes


def quantize_in_place(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
    """Quantize a model that is in memory already, each linear layer on its way to ``device``.

    The codes are those of a load through :func:`nf4_config`.
    """
    bnb = require_nf4(dtype).nn
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or module is head:
            continue
        packed = bnb.Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=dtype,
            compress_statistics=False,
            quant_type=NF4,
            device="meta",  # pyright: ignore[reportArgumentType] not annotated
        )
        options: dict[str, Any] = {"compress_statistics": False, "quant_type": NF4, "module": packed}
        packed.weight = bnb.Params4bit(module.weight.data, requires_grad=False, **options)
        if module.bias is not None:
            packed.bias = module.bias
        model.set_submodule(name, packed.to(device))
    marked: Any = model
    marked.is_loaded_in_4bit = True  # what PEFT asks
    keep_gradients(model)


def keep_gradients(model: nn.Module) -> None:
    """Keep bitsandbytes from repacking the weights, which loses the gradient through them, silently.

    On CPUs with AVX512-BF16 bitsandbytes 0.50 repacks a layer's weights at its first call in eval mode without
    gradient: backward then gives no gradient for the layer's input, ever again, and a second model that shares the
    weights reads them wrongly.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 an attribute that nn.Module does not type
