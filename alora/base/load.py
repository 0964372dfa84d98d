"""Load a base model: its tokenizer, its weights and their fingerprint; in four bits where that is asked for.

Those are NF4 by bitsandbytes, as QLoRA has it (Dettmers et al. 2023, section 3). Every linear layer but the head holds
4-bit codes of the NormalFloat grid, one float32 scale for each 64 weights, and computes in the base's dtype after
unpacking them. The scales are not quantized a second time: it would save 0.4 bits a weight, and vLLM's own bitsandbytes
loader does not do it either.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from alora.base.config import quiet, read_config, require_whole
from alora.base.fingerprint import Fingerprint
from alora.base.location import base_location
from alora.base.stored import fingerprint_base, load_options, load_tokenizer, reading, weight_files
from alora.config.environment import cpu_flags
from alora.config.schema import BaseSettings
from alora.errors import BaseError, MissingDependency
from alora.text import note

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
    """Quantize a model that is in memory, each linear layer on its way to ``device``, to the codes of a load."""
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


@dataclass(frozen=True)
class LoadedBase:
    """A base in memory. ``source`` is what the user asked for: a hub id, a folder, a GGUF file or "smollm2"."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: Fingerprint
    source: str

    @property
    def dtype(self) -> str:
        """What it computes in: ``float32``, ``bfloat16``, ..."""
        return str(self.model.dtype).removeprefix("torch.")


def load_base(settings: BaseSettings, progress: bool = True) -> LoadedBase:
    """Load the base that ``settings`` name, frozen and in eval mode, with sdpa attention."""
    location = base_location(settings, progress)
    tokenizer = load_tokenizer(settings, progress)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    _note_emulation(dtype, device)
    options = load_options(settings)
    quantized = settings.quantization == NF4
    random = settings.weights == "random"
    with reading(settings.source):
        config = read_config(location, options)
        if random:
            model = _random_weights(config, dtype, device, quantized)
        else:
            weight_files(Path(location))
            model = _stored_weights(location, config, dtype, device, quantized, options)
        model.eval().requires_grad_(False)
        fingerprint = fingerprint_base(None if random else Path(location), model, tokenizer, settings.revision)
    if quantized:
        fingerprint = replace(fingerprint, quantization=NF4, quantization_settings=SETTINGS)
    return LoadedBase(model, tokenizer, fingerprint, str(settings.source))


def _random_weights(config: Any, dtype: torch.dtype, device: torch.device, quantized: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if quantized:
        quantize_in_place(model, dtype, device)
    return _moved(model, device)


def _stored_weights(
    location: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    quantized: bool,
    options: dict[str, Any],
) -> PreTrainedModel:
    extra: dict[str, Any] = options | {"ignore_mismatched_sizes": True}  # require_whole() names them
    if quantized:  # tensor by tensor while loading: the unquantized base is never in memory as a whole
        if device.type == "cuda" and device.index is None:  # a device map wants to know which GPU
            device = torch.device("cuda", torch.cuda.current_device())
        extra |= {"quantization_config": nf4_config(dtype), "device_map": {"": device}}
    with quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            location, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **extra
        )
    model, info = loaded
    require_whole(info, location)
    if device.type == "cpu":
        _in_memory(model)
    if not quantized:
        return _moved(model, device)
    keep_gradients(model)
    return model


def _moved(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    return model.to(device=device)  # pyright: ignore[reportCallIssue, reportArgumentType] wrapped by transformers


def _in_memory(model: PreTrainedModel) -> None:
    """Out of the files that transformers maps: weights in use must not change, or end the process, when someone writes
    over the files. Tensor by tensor, so nothing is in memory twice. Packed weights are no file's."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.clone()


def load_skeleton(settings: BaseSettings) -> PreTrainedModel:
    """The base's modules without their weights (meta device): enough to know names and shapes, in seconds."""
    location = base_location(settings)
    with reading(settings.source):
        config = read_config(location, load_options(settings))
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=settings.trust_remote_code)


def choose_device(name: str) -> torch.device:
    """The device that ``base.device`` means here; BaseError when there is none such."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BaseError(f"base.device={name!r} is not a device; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BaseError(f"base.device={name} but torch {torch.__version__} sees no GPU; use base.device=cpu")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that ``base.dtype`` means on ``device``."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, name)


def _note_emulation(dtype: torch.dtype, device: torch.device) -> None:
    """Say that a base in bfloat16 will be slow on a processor that names no instruction for it."""
    if dtype is torch.bfloat16 and device.type == "cpu" and not {"avx512_bf16", "amx_bf16", "bf16"} & {*cpu_flags()}:
        note(
            "base.dtype=bfloat16: this processor has no instructions for it (AVX512-BF16, AMX), so the base will be "
            "several times slower than with base.dtype=float32"
        )


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether ``device`` has kernels for bfloat16; a CPU without AVX512 emulates it, 17 times slower than float32."""
    return device.type == "cuda" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
