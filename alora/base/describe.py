"""A base that is computed elsewhere: its tokenizer and fingerprint, without its weights in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.base.fingerprint import Fingerprint, fingerprint_base, template_digest, tokenizer_digest
from alora.base.load import base_location, load_tokenizer
from alora.config.schema import BaseSettings
from alora.errors import BaseError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True)
class DescribedBase:
    """What :class:`~alora.base.load.LoadedBase` knows of a base but its weights."""

    tokenizer: PreTrainedTokenizerBase
    fingerprint: Fingerprint
    source: str


@dataclass(frozen=True)
class _ConfigAlone:
    """What :func:`fingerprint_base` asks of a model whose weights lie in files."""

    config: PretrainedConfig

    def state_dict(self) -> dict[str, Any]:
        raise BaseError("the base's folder has no *.safetensors; convert its weights, or name another base")


def base_folder(settings: BaseSettings) -> Path:
    """The folder that an engine loads the base from; a hub base is fetched if it is not in the cache.

    Raises:
        BaseError: no base is chosen, or it cannot be found or fetched.
    """
    location = base_location(settings)
    if Path(location).is_dir():
        return Path(location)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(location, revision=settings.revision, allow_patterns=_FILES))
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise BaseError(f"base {location!r} cannot be fetched: {first_line}; check base.source and the hub") from error


def describe_base(settings: BaseSettings, folder: Path) -> DescribedBase:
    """Fingerprint the base in ``folder``, which ``settings`` name.

    Raises:
        BaseError: it cannot be read.
    """
    from transformers import AutoConfig

    tokenizer = load_tokenizer(settings)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=settings.trust_remote_code)
    fingerprint = fingerprint_base(folder, _ConfigAlone(config), tokenizer)  # type: ignore[arg-type]
    return DescribedBase(tokenizer, fingerprint, str(settings.source))


def describe_prompts(settings: BaseSettings, elsewhere: Fingerprint) -> DescribedBase:
    """A base of which only the tokenizer is needed here; whose weights it is run with, ``elsewhere`` says.

    Raises:
        BaseError: its tokenizer cannot be read.
    """
    tokenizer = load_tokenizer(settings)
    here = replace(elsewhere, tokenizer=tokenizer_digest(tokenizer), template=template_digest(tokenizer))
    return DescribedBase(tokenizer, here, str(settings.source))
