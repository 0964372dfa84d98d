"""A base as files: its tokenizer, the files with its weights, the fingerprint of both, and fetching it for an engine.

transformers reads ``model.safetensors``, or without it what ``model.safetensors.index.json`` names, wherever that is.
vLLM reads every ``*.safetensors`` of the folder, or of those what the index names. Where the two could differ, the
weights that answer need not be those that the fingerprint is of, so the folder is refused.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download, try_to_load_from_cache
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from alora.base import REMEDY
from alora.base.cache import cache_root, remember_of
from alora.base.config import read_config
from alora.base.fingerprint import Fingerprint, config_digest, template_digest, tokenizer_digest
from alora.base.location import base_location
from alora.config.paths import DEFAULT_BASE, PLAIN, is_gguf
from alora.config.schema import BaseSettings
from alora.errors import AloraError, BaseError, first_line
from alora.received import DAMAGED, decode, refused
from alora.text import read_json
from alora.wire.weights import CONFIG

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]  # besides the weights
_PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)


@dataclass(frozen=True)
class DescribedBase:
    """What :class:`~alora.base.load.LoadedBase` knows of a base but its weights."""

    tokenizer: PreTrainedTokenizerBase
    fingerprint: Fingerprint
    source: str


def load_tokenizer(settings: BaseSettings, progress: bool = True) -> PreTrainedTokenizerBase:
    """Load the base's tokenizer alone; BaseError when it cannot be read or has no chat template."""
    location = base_location(settings, progress)
    with reading(settings.source):
        tokenizer = AutoTokenizer.from_pretrained(location, **load_options(settings))
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if dropout := getattr(model, "dropout", None):
        raise BaseError(
            f"base {settings.source!r}: its tokenizer.json has BPE dropout {dropout:.3g}, which splits the same text "
            "another way each time; set model.dropout to null there"
        )
    if settings.chat_template is not None:
        tokenizer.chat_template = template_text(settings.chat_template)
    if not tokenizer.chat_template:
        raise BaseError(
            f"base {settings.source!r} has no chat template; add base.chat_template={PLAIN} where it was pretrained "
            "alone, base.chat_template=FILE with the Jinja template that it was tuned with, or choose another base"
        )
    return tokenizer


def template_text(given: str) -> str:
    """The template that ``base.chat_template`` means, or a bundle has recorded: by name, by file, or as it is."""
    if given == PLAIN:
        return _PLAIN
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaseError(
            f"base.chat_template: {given} cannot be read ({first_line(error)}); give a Jinja file in UTF-8"
        ) from error


def load_options(settings: BaseSettings) -> dict[str, Any]:
    """What every loader of transformers is given."""
    return {"revision": settings.revision or "main", "trust_remote_code": settings.trust_remote_code}


@contextlib.contextmanager
def reading(source: str | None) -> Iterator[None]:
    """Whatever transformers raises over a base, as BaseError."""
    try:
        yield
    except AloraError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            how = "read it, then set base.trust_remote_code=true on the command line"
            raise BaseError(f"base {source!r} runs its own Python; {how}") from error
        remedy = "check base.source, or take base=smollm2"
        if source is not None and (source == DEFAULT_BASE or is_gguf(source)):
            remedy = f"remove its folder from {cache_root() / 'bases'}, and the next call makes it again"
        if isinstance(error, ImportError):
            remedy = "install what is missing; alora doctor says which of alora's packages do not load"
        raise BaseError(f"base {source!r} cannot be loaded: {first_line(error)}; {remedy}") from error


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of the base in ``folder``, in order; none where it has no ``*.safetensors``."""
    if os.path.lexists(folder / CONFIG):  # transformers follows a dangling link, too
        raise BaseError(f"{folder / CONFIG}: transformers would load an adapter with the base; move it elsewhere")
    present = {path.name for path in folder.glob("*.safetensors") if not path.name.startswith(".")}
    index = folder / INDEX
    if not index.exists():
        if not present:
            return []
        named, whence = {WHOLE}, "without an index"
    else:
        named, whence = indexed_files(index), f"by {INDEX}"
        if WHOLE in present and named != {WHOLE}:
            raise BaseError(f"{folder}: transformers reads {WHOLE}, and vLLM what {INDEX} names; remove one of the two")
    if missing := sorted(named - present):
        raise BaseError(f"{folder}: the weights are in {missing[0][:99]!r} {whence}, no file of this folder; {REMEDY}")
    if others := sorted(present - named):
        raise BaseError(
            f"{folder / others[0]}: the weights are in {sorted(named)[0]!r} {whence}, and some loaders would read this "
            "file, too; move it elsewhere"
        )
    return [folder / name for name in sorted(named)]


def indexed_files(index: Path) -> set[str]:
    """The files that ``index`` names; BaseError when it is not an index."""
    try:
        places = decode(dict[str, str], read_json(index, BaseError, REMEDY).get("weight_map"), "weight_map")
        if not places:
            raise TypeError("weight_map is empty")
    except TypeError as error:
        why = f"{index} does not say which tensor is in which file ({error}); {REMEDY}"
        raise refused(BaseError, DAMAGED, why) from error
    return set(places.values())


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
    where there is no such folder. Without any, and where ``folder`` is None, those in memory."""
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
        with contextlib.ExitStack() as stack:
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
