"""A base as files: fetched for an engine that loads it itself, and the digest of the weights that it stores."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from alora.base import REMEDY
from alora.base.cache import remember_of
from alora.base.config import read_config
from alora.base.describe import DescribedBase, load_options, load_tokenizer
from alora.base.fingerprint import Fingerprint, config_digest, template_digest, tokenizer_digest
from alora.base.location import base_location
from alora.base.weight_files import INDEX, WHOLE, indexed_files, weight_files
from alora.config.schema import BaseSettings
from alora.errors import AloraError, BaseError, first_line

_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]  # besides the weights


def base_folder(settings: BaseSettings) -> Path:
    """The folder that an engine loads the base from; a hub base is fetched if it is not in the cache."""
    location = base_location(settings)
    if Path(location).is_dir():
        return Path(location)
    try:
        folder = Path(snapshot_download(location, revision=settings.revision, allow_patterns=_FILES))
        # Many hub bases hold their weights twice, under names that vLLM would take for the base's format.
        weights = sorted(indexed_files(folder / INDEX)) if (folder / INDEX).exists() else [WHOLE]
        return Path(snapshot_download(location, revision=settings.revision, allow_patterns=weights))
    except AloraError:
        raise
    except Exception as error:
        raise BaseError(
            f"base {location!r} cannot be fetched: {first_line(error)}; check base.source and the hub"
        ) from error


def describe_base(settings: BaseSettings, folder: Path) -> DescribedBase:
    """Fingerprint the base in ``folder``, which ``settings`` name."""
    tokenizer = load_tokenizer(settings)
    config = read_config(str(folder), load_options(settings))
    if not (files := weight_files(folder)):
        raise BaseError(f"base {folder} has no *.safetensors; convert its weights, or name another base")
    return DescribedBase(tokenizer, _fingerprint(_stored_weights(files), config, tokenizer), str(settings.source))


def fingerprint_base(
    folder: Path | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, revision: str | None = None
) -> Fingerprint:
    """Fingerprint a base; its weights from the safetensors that it was loaded from: in ``folder``, or the hub's cache
    where there is no such folder. Without any, and where ``folder`` is None, those in memory.
    """
    if folder is not None and not folder.is_dir():  # of the hub: the snapshot that it was just loaded from
        config = try_to_load_from_cache(str(folder), "config.json", revision=revision)
        folder = Path(config).parent if isinstance(config, str) else None
    files = weight_files(folder) if folder is not None else []
    weights = _stored_weights(files) if files else _tensors_digest(sorted(model.state_dict().items()))
    return _fingerprint(weights, model.config, tokenizer)


def _fingerprint(weights: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Fingerprint:
    return Fingerprint(weights, tokenizer_digest(tokenizer), template_digest(tokenizer), config=config_digest(config))


def _stored_weights(files: Sequence[Path]) -> str:
    """Digest of the tensors in ``files``, remembered in the user's cache by each file's path, size and time."""

    def compute() -> str:
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
            tensors = {name: shard for shard in opened for name in shard.keys()}  # noqa: SIM118
            return _tensors_digest((name, tensors[name].get_tensor(name)) for name in sorted(tensors))

    try:
        return remember_of(files, ".txt", compute)
    except (OSError, SafetensorError) as error:
        raise BaseError(f"the weights in {files[0].parent} cannot be read: {first_line(error)}; {REMEDY}") from error


def _tensors_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
