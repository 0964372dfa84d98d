"""A GGUF file's model and tokenizer, written as an ordinary model folder: complete, or not at all."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from alora.base import REMEDY
from alora.base.config import require_whole
from alora.errors import BaseError

_BLOCK = re.compile(r"blk\.(\d{1,6})\.")  # that opens the names of a layer's tensors


def write_model(file: Path, folder: Path, progress: bool) -> None:
    """Write the model and the tokenizer in ``file`` to the folder ``folder``, in float32.

    Raises:
        BaseError: the file lacks a tensor, holds another number of layers than its header describes, or NaN; or the
            disk has no room for the folder.
    """
    # Alone in a folder: transformers also reads what lies next to the file, Python included, and the cache's key is the
    # file's digest.
    alone = folder.parent / "alone"
    alone.mkdir()
    (alone / file.name).symlink_to(file.absolute())
    stored: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    blocks = _stored_blocks(file)
    weights = _require_layers(file, blocks, AutoConfig.from_pretrained(alone, **stored))
    _require_space(folder.parent, weights * torch.float32.itemsize)
    with _bars(progress):
        tokenizer = AutoTokenizer.from_pretrained(alone, **stored)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            alone, dtype="float32", output_loading_info=True, ignore_mismatched_sizes=True, **stored
        )
    model, info = loaded
    require_whole(info, str(file))
    _require_sound(file, model)
    # The weights are plain float32 by now; the model still says that it is quantized and would refuse to be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _stored_blocks(file: Path) -> set[int]:
    """The layers whose tensors are in the file. Refuse a header that counts more of them, before transformers makes a
    config with an entry for each.

    Raises:
        BaseError: with both counts.
    """
    reader = GGUFReader(file)
    blocks = {int(block[1]) for tensor in reader.tensors if (block := _BLOCK.match(tensor.name))}
    for name, field in reader.fields.items():
        count = field.contents() if name.endswith(("block_count", "_layers")) else 0
        if isinstance(count, int) and not 0 <= count <= len(blocks):
            raise _other_layers(file, count, blocks)
    return blocks


def _require_layers(file: Path, blocks: set[int], config: Any) -> int:
    """The number of weights that the file's header describes. Refuse a file whose header describes other layers, or
    more weights, than it holds: transformers would make room for all of them, and fill those that are missing with
    random numbers.

    Raises:
        BaseError: with both counts.
    """
    layers = config.get_text_config().num_hidden_layers
    if len(blocks) != layers or max(blocks) != layers - 1:
        raise _other_layers(file, layers, blocks)
    described = sum(value.numel() for value in _skeleton(config).parameters())
    size = file.stat().st_size
    if described > 8 * size:  # no kind of weight takes less than a bit
        raise BaseError(f"{file}: its header describes {described:,} weights, and it holds {size:,} bytes; {REMEDY}")
    return described


def _skeleton(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def _other_layers(file: Path, described: int, blocks: set[int]) -> BaseError:
    return BaseError(f"{file}: its header describes {described} layers, and it holds those of {len(blocks)}; {REMEDY}")


def _require_sound(file: Path, model: Any) -> None:
    """Refuse weights that no later call could use: the folder would be in the cache for good.

    Raises:
        BaseError: a tensor holds NaN or infinity or is not of the shape that the config says, or there are more or
            fewer embeddings than tokens.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if rows != model.config.vocab_size:
        raise BaseError(f"{file}: it holds {rows} embeddings for {model.config.vocab_size} tokens; {REMEDY}")
    wanted = {name: value.shape for name, value in _skeleton(model.config).named_parameters()}
    for name, value in model.named_parameters():
        if value.shape != wanted[name]:  # transformers reads no head size from the header of some families
            raise BaseError(
                f"{file}: tensor {name} is {tuple(value.shape)} in it and {tuple(wanted[name])} by its config, as "
                "transformers reads its header; take the base's safetensors, or another base"
            )
        if not value.isfinite().all():
            raise BaseError(f"{file}: tensor {name} holds NaN or infinity; {REMEDY}")


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BaseError(
            f"{folder.parent} has {free / 1e9:.1f} GB free and the converted base needs {needed / 1e9:.1f} GB; make "
            "room, or set ALORA_CACHE to a folder on another disk"
        )


@contextlib.contextmanager
def _bars(progress: bool) -> Iterator[None]:
    """transformers shows a bar over the tensors that it dequantizes; it is the only sign of life of the conversion."""
    shown = logging.is_progress_bar_enabled()
    (logging.enable_progress_bar if progress else logging.disable_progress_bar)()
    try:
        yield
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
