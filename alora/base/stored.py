"""A base as files: fetched for an engine that loads it itself, and the digest of the weights that it stores."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from alora.base import REMEDY
from alora.base.cache import remember_of
from alora.base.describe import DescribedBase, load_tokenizer
from alora.base.fingerprint import Fingerprint, config_digest, template_digest, tokenizer_digest
from alora.base.location import base_location
from alora.config.schema import BaseSettings
from alora.errors import BaseError, first_line

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def base_folder(settings: BaseSettings) -> Path:
    """The folder that an engine loads the base from; a hub base is fetched if it is not in the cache.

    Raises:
        BaseError: no base is chosen, or it cannot be found or fetched.
    """
    location = base_location(settings)
    if Path(location).is_dir():
        return Path(location)
    try:
        return Path(snapshot_download(location, revision=settings.revision, allow_patterns=_FILES))
    except Exception as error:
        raise BaseError(
            f"base {location!r} cannot be fetched: {first_line(error)}; check base.source and the hub"
        ) from error


def describe_base(settings: BaseSettings, folder: Path) -> DescribedBase:
    """Fingerprint the base in ``folder``, which ``settings`` name.

    Raises:
        BaseError: it cannot be read.
    """
    tokenizer = load_tokenizer(settings)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
    if not (files := sorted(folder.glob("*.safetensors"))):
        raise BaseError(f"base {folder} has no *.safetensors; convert its weights, or name another base")
    return DescribedBase(tokenizer, _fingerprint(_stored_weights(files), config, tokenizer), str(settings.source))


def fingerprint_base(folder: Path | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Fingerprint:
    """Fingerprint a base; its weights from ``folder``'s safetensors where there are any, else from memory."""
    files = sorted(folder.glob("*.safetensors")) if folder is not None and folder.is_dir() else _hub_files(model)
    weights = _stored_weights(files) if files else _tensors_digest(sorted(model.state_dict().items()))
    return _fingerprint(weights, model.config, tokenizer)


def _fingerprint(weights: str, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Fingerprint:
    return Fingerprint(weights, tokenizer_digest(tokenizer), template_digest(tokenizer), config=config_digest(config))


def _hub_files(model: PreTrainedModel) -> list[Path]:
    """The cached files of a hub base, found through the snapshot that its config came from."""
    name = getattr(model.config, "_name_or_path", "") or ""
    commit = getattr(model.config, "_commit_hash", None)
    if not name or commit is None:
        return []
    config = try_to_load_from_cache(name, "config.json", revision=commit)
    return sorted(Path(config).parent.glob("*.safetensors")) if isinstance(config, str) else []


def _stored_weights(files: list[Path]) -> str:
    """Digest of the tensors in ``files``, remembered in the user's cache by each file's path, size and time."""
    return remember_of(files, ".txt", lambda: _tensors_digest(_stored_tensors(files)))


def _stored_tensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    files_by_tensor: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in files:
            try:
                opened = stack.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise BaseError(f"{file} cannot be read: {first_line(error)}; {REMEDY}") from error
            files_by_tensor.update(dict.fromkeys(opened.keys(), opened))
        for name in sorted(files_by_tensor):
            yield name, files_by_tensor[name].get_tensor(name)


def _tensors_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
