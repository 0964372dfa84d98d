"""What a base is, in digests: a verdict from the wrong base is an error, not a number."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


_NOT_COMPUTING = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "pad_token_id",
                  "quantization_config")  # fmt: skip


@dataclass(frozen=True)
class Fingerprint:
    """sha256 digests of a base's weights, tokenizer, chat template and config, and its quantization ("none", "nf4").

    The config counts where it departs from its class's defaults, so that a new default elsewhere is not a difference.

    The weights' digest is over names, dtypes, shapes and bytes of the stored tensors, in the order of their names, so
    it does not depend on sharding or on the dtype that the base is run in. The template's is over the special tokens,
    too: ``{{ bos_token }}`` writes one of them. Of a quantized base too they are those of
    the unquantized one; how it was made from that is in ``quantization_settings``.
    """

    weights: str
    tokenizer: str
    template: str
    quantization: str = "none"
    config: str = ""
    quantization_settings: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain form for manifests and certificates."""
        return asdict(self)

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """Names of the fields in which two bases differ; quantization settings count only for the same quantization."""
        mine, theirs = self.as_dict(), other.as_dict()
        differing = tuple(name for name in mine if mine[name] != theirs[name])
        return tuple(name for name in differing if name != "quantization_settings" or "quantization" not in differing)

    @property
    def quantized_as(self) -> str:
        """The quantization in words: "none", or its name and settings."""
        return (
            f"{self.quantization} ({self.quantization_settings})" if self.quantization_settings else self.quantization
        )


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of what turns text into ids: the fast tokenizer's own serialisation, without truncation and padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _text_digest(json.dumps(sorted(tokenizer.get_vocab().items())))
    state = json.loads(backend.to_str())
    state.pop("truncation", None)
    state.pop("padding", None)
    return _text_digest(json.dumps(state, sort_keys=True, ensure_ascii=True))


def template_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of the chat template and of the special tokens, which it reads as variables."""
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return _text_digest(json.dumps([str(tokenizer.chat_template or ""), tokens], sort_keys=True))


def config_digest(config: PretrainedConfig) -> str:
    """Digest of what the config says about the computation; where it came from and how it is run stays out."""
    settings = json.loads(config.to_json_string(use_diff=True))
    kept = {key: value for key, value in settings.items() if not key.startswith("_") and key not in _NOT_COMPUTING}
    return _text_digest(json.dumps(kept, sort_keys=True))


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
