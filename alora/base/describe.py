"""A base that is computed elsewhere: its tokenizer and fingerprint, without its weights in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from alora.base.cache import cache_root
from alora.base.config import own_python
from alora.base.fingerprint import Fingerprint
from alora.base.location import base_location
from alora.config.paths import DEFAULT_BASE, PLAIN, is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError, first_line

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
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, **load_options(settings))
    except Exception as error:
        raise BaseError(unreadable(settings.source, error)) from error
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


def unreadable(source: str | None, error: Exception) -> str:
    """The message for whatever transformers raises."""
    if "trust_remote_code" in str(error):
        return own_python(source)
    remedy = "check base.source, or take base=smollm2"
    if source is not None and (source == DEFAULT_BASE or is_gguf(source)):
        remedy = f"remove its folder from {cache_root() / 'bases'}, and the next call makes it again"
    if isinstance(error, ImportError):
        remedy = "install what is missing; alora doctor says which of alora's packages do not load"
    return f"base {source!r} cannot be loaded: {first_line(error)}; {remedy}"
