"""Load a base model: its weights, tokenizer and fingerprint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from alora.base.fingerprint import Fingerprint


@dataclass(frozen=True)
class LoadedBase:
    """A base in memory. ``source`` is what the user asked for (hub id, folder or "tiny")."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    fingerprint: "Fingerprint"
    source: str
