"""Load a base model: its tokenizer, its weights and their fingerprint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.base import smollm2
from alora.base.config import read_config, require_named_type, require_stored, require_whole, skeleton
from alora.base.fingerprint import Fingerprint, fingerprint_base
from alora.base.gguf import converted
from alora.base.quantize import NF4, SETTINGS, keep_gradients, nf4_config, quantize_in_place
from alora.config.environment import debugging
from alora.config.paths import is_gguf
from alora.config.schema import BaseSettings
from alora.errors import AloraError, BaseError, first_line

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LoadedBase:
    """A base in memory. ``source`` is what the user asked for: a hub id, a folder, a GGUF file or "smollm2"."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: Fingerprint
    source: str


def load_base(settings: BaseSettings, progress: bool = True) -> LoadedBase:
    """Load the base that ``settings`` name, frozen and in eval mode, with sdpa attention.

    Raises:
        BaseError: it cannot be found or read, or alora refuses it by name (GPTQ, HQQ, AWQ; unknown dtype).
        MissingDependency: it is to be quantized, and bitsandbytes is not installed.
    """
    location = base_location(settings, progress)
    tokenizer = load_tokenizer(settings, progress)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    options = _load_options(settings)
    quantized = settings.quantization == NF4
    try:
        config = read_config(location, options)
        if settings.weights == "random":
            model = _random_weights(config, dtype, device, quantized)
        else:
            require_stored(config, location, settings.trust_remote_code)
            model = _stored_weights(location, dtype, device, quantized, options)
    except AloraError:
        raise
    except Exception as error:
        raise BaseError(_unreadable(settings.source, error)) from error
    model.eval().requires_grad_(False)
    folder = None if settings.weights == "random" else Path(location)
    fingerprint = fingerprint_base(folder, model, tokenizer)
    if quantized:
        fingerprint = replace(fingerprint, quantization=NF4, quantization_settings=SETTINGS)
    return LoadedBase(model, tokenizer, fingerprint, str(settings.source))


def _random_weights(config: Any, dtype: torch.dtype, device: torch.device, quantized: bool) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    if quantized:
        quantize_in_place(model, dtype, device)
    return _moved(model, device)


def _stored_weights(
    location: str, dtype: torch.dtype, device: torch.device, quantized: bool, options: dict[str, Any]
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    extra: dict[str, Any] = options | {"ignore_mismatched_sizes": True}  # require_whole() names them
    if quantized:  # tensor by tensor while loading: the unquantized base is never in memory as a whole
        extra |= {"quantization_config": nf4_config(dtype), "device_map": {"": _numbered(device)}}
    with _quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            location, dtype=dtype, attn_implementation="sdpa", use_safetensors=True, output_loading_info=True, **extra
        )
    model, info = loaded
    require_whole(info, location)
    if not quantized:
        return _moved(model, device)
    keep_gradients(model)
    return model


def _moved(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    return model.to(device=device)  # pyright: ignore[reportCallIssue, reportArgumentType] wrapped by transformers


def _numbered(device: torch.device) -> torch.device:
    """A device map wants to know which GPU."""
    import torch

    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def load_tokenizer(settings: BaseSettings, progress: bool = True) -> PreTrainedTokenizerBase:
    """Load the base's tokenizer alone; BaseError when it cannot be read or has no chat template."""
    from transformers import AutoTokenizer

    location = base_location(settings, progress)
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **_load_options(settings))
    except Exception as error:
        raise BaseError(_unreadable(settings.source, error)) from error
    if not tokenizer.chat_template:
        raise BaseError(
            f"base {settings.source!r} has no chat template; choose an instruction-tuned base, "
            "or add chat_template.jinja to its folder"
        )
    return tokenizer


def load_skeleton(settings: BaseSettings) -> PreTrainedModel:
    """The base's modules without their weights (meta device): enough to know names and shapes, in seconds.

    Raises:
        BaseError: its config cannot be read, or alora refuses it by name.
    """
    location = base_location(settings)
    try:
        return skeleton(read_config(location, _load_options(settings)), settings.trust_remote_code)
    except AloraError:
        raise
    except Exception as error:
        raise BaseError(_unreadable(settings.source, error)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' bar over tensors that are on disk already (the bars of a download are the hub's and stay), and
    its report on tensors that are missing or misshapen, which :func:`require_whole` refuses."""
    from transformers.utils import logging

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


def base_location(settings: BaseSettings, progress: bool = True) -> str:
    """The folder or hub id that any loader takes for ``settings``; "smollm2" is fetched and a GGUF file converted when
    the cache does not hold them yet.

    Raises:
        BaseError: no base is chosen, its folder or file does not exist, or it cannot be fetched or converted.
    """
    source = settings.source
    if source is None:
        raise BaseError("no base chosen; add base=smollm2, base=qwen3_4b, ... or base.source=ID_FOLDER_OR_GGUF")
    if source == smollm2.NAME:
        return str(smollm2.ensure_smollm2(progress))
    if is_gguf(source):
        return str(converted(Path(source), progress))
    if Path(source).is_absolute() and not Path(source).is_dir():
        raise BaseError(f"base folder {source} does not exist; check base.source")
    require_named_type(Path(source))
    return source


def _load_options(settings: BaseSettings) -> dict[str, Any]:
    return {"revision": settings.revision or "main", "trust_remote_code": settings.trust_remote_code}


def choose_device(name: str) -> torch.device:
    """The device that ``base.device`` means here; BaseError when there is none such."""
    import torch

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
    """The dtype that ``base.dtype`` means on ``device``; BaseError for one that alora does not run."""
    import torch

    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if name not in known:
        raise BaseError(f"base.dtype={name!r} is not one of auto, {', '.join(known)}")
    return known[name]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether ``device`` has kernels for bfloat16; a CPU without AVX512 emulates it, 17 times slower than float32."""
    import torch

    return device.type == "cuda" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _unreadable(source: str | None, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return f"base {source!r} runs its own Python; read it, then set base.trust_remote_code=true on the command line"
    return f"base {source!r} cannot be loaded: {first_line(error)}; check base.source, or take base=smollm2"
