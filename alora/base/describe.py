"""A base that is computed elsewhere: its tokenizer and fingerprint, without its weights in memory."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from alora.base import REMEDY
from alora.base.cache import cache_root
from alora.base.config import own_python, require_buildable
from alora.base.fingerprint import Fingerprint
from alora.base.location import base_location
from alora.config.paths import DEFAULT_BASE, is_gguf
from alora.config.schema import BaseSettings
from alora.errors import BaseError, first_line, is_panic

MOST_GROWTH = 64  # published tokenizers replace a blank by one mark


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
        require_buildable(location, load_options(settings))  # transformers reads the config for a tokenizer, too
        tokenizer = AutoTokenizer.from_pretrained(location, **load_options(settings))
    except BaseError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise BaseError(unreadable(settings.source, error)) from error
    names = tokenizer.model_input_names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BaseError(
            f"base {settings.source!r}: model_input_names is not a list of names in its tokenizer_config.json; {REMEDY}"
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise BaseError(
            f"base {settings.source!r}: model_max_length is not a number in its tokenizer_config.json; {REMEDY}"
        )
    if (growth := _growth(tokenizer)) > MOST_GROWTH:
        raise BaseError(
            f"base {settings.source!r}: its tokenizer's normalizers make {growth:.3g} characters of one; take the base "
            "from who published it"
        )
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if dropout := getattr(model, "dropout", None):
        raise BaseError(
            f"base {settings.source!r}: its tokenizer.json has BPE dropout {dropout:.3g}, which splits the same text "
            "another way each time; set model.dropout to null there"
        )
    if not tokenizer.chat_template:
        raise BaseError(
            f"base {settings.source!r} has no chat template; choose an instruction-tuned base, "
            "or add chat_template.jinja to its folder"
        )
    return tokenizer


def _growth(tokenizer: PreTrainedTokenizerBase) -> float:
    """The most characters that the normalizers make of one character: a chain of replacements multiplies."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    waiting, growth = [{} if normalizer is None else json.loads(normalizer.__getstate__())], 1.0
    while waiting:
        part = waiting.pop()
        waiting += part.get("normalizers", ())
        replaced = part.get("pattern", {}).get("String") or " "
        charsmap = base64.b64decode(part.get("precompiled_charsmap") or "")
        # As SentencePiece writes it: the size of a trie, the trie, and what it points to, each text ended by a zero.
        texts = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")
        growth *= max(
            1.0, len(part.get("content") or "") / len(replaced), len(part.get("prepend") or ""), *map(len, texts)
        )
    return growth


def load_options(settings: BaseSettings) -> dict[str, Any]:
    """What every loader of transformers is given."""
    return {"revision": settings.revision or "main", "trust_remote_code": settings.trust_remote_code}


def unreadable(source: str | None, error: BaseException) -> str:
    """The message for whatever transformers raises."""
    if "trust_remote_code" in str(error):
        return own_python(source)
    remedy = "check base.source, or take base=smollm2"
    if source is not None and (source == DEFAULT_BASE or is_gguf(source)):
        remedy = f"remove its folder from {cache_root() / 'bases'}, and the next call makes it again"
    if isinstance(error, ImportError):
        remedy = "install what is missing; alora doctor says which of alora's packages do not load"
    return f"base {source!r} cannot be loaded: {first_line(error)}; {remedy}"
