"""What an adapter's ``adapter_config.json`` says: where it starts, and what this vLLM would not read of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.wire.weights import CONFIG

MANIFEST = "alora.json"
_EARLIER_KEY = "invocation_string"  # of the package alora 0.x by the paper's authors, before PEFT knew aLoRA
_MEANINGFUL = {
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
    "use_dora",
}
_BASE_CHANGED = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True)
class AdapterConfig:
    """What decides where an adapter starts and what may be asked of it; no invocation tokens: plain LoRA."""

    invocation_tokens: tuple[int, ...]
    adapts_head: bool = False

    @property
    def is_alora(self) -> bool:
        return bool(self.invocation_tokens)


def read_config(folder: str, shown: str) -> AdapterConfig:
    """The configuration in ``folder``, which messages call ``shown``; AdapterError for what this vLLM cannot read."""
    file = Path(shown, CONFIG)
    try:
        config = read_json(folder, CONFIG)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise AdapterError(f"{file}: not a readable PEFT configuration ({why})") from error
    config = config if isinstance(config, dict) else {}
    tokens = config.get("alora_invocation_tokens")
    if tokens is None:
        if _exported_as_alora(folder):
            raise AdapterError(
                f"{file} has no alora_invocation_tokens, but {MANIFEST} next to it says that this is an aLoRA: a tool "
                "deleted the key, and the adapter would run as a wrong plain LoRA; restore the file"
            )
        if config.get(_EARLIER_KEY):
            raise AdapterError(
                f"{file} has {_EARLIER_KEY} and no alora_invocation_tokens, as the first aLoRA package wrote it: it "
                "would run as a wrong plain LoRA; add the token ids of that text as alora_invocation_tokens"
            )
        return AdapterConfig((), _adapts_head(config))
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise AdapterError(f"{file}: alora_invocation_tokens is {tokens!r}, not a list of token ids")
    _require_read(config, file)
    return AdapterConfig(tuple(tokens), _adapts_head(config))


def _adapts_head(config: dict[str, Any]) -> bool:
    """Whether PEFT's ``target_modules``, names or a pattern, reach the output layer.

    A pattern that reaches the head without its name is refused for its weights.
    """
    targets = config.get("target_modules") or []
    if isinstance(targets, str):
        return "lm_head" in targets
    return any(str(name).split(".")[-1] == "lm_head" for name in targets)


def _require_read(config: dict[str, Any], file: Path) -> None:
    """AdapterError for what changes an adapter's meaning and this vLLM would drop: older ones know few keys."""
    used = {key for key in _MEANINGFUL if config.get(key)}
    if str(config.get("init_lora_weights", True)).split("_")[0].lower() in _BASE_CHANGED:
        used.add("init_lora_weights")
    dropped = sorted(used - compat.peft_fields())
    if dropped:
        raise AdapterError(
            f"{file} sets {', '.join(dropped)}, which vLLM {compat.vllm_version()} does not read, so the adapter would "
            "answer wrong; serve it with a newer vLLM, or train it without"
        )


def claims_alora(path: str) -> bool:
    """Whether an adapter claims to be an aLoRA, however badly; what cannot be read claims nothing."""
    try:
        folder = compat.adapter_folder(path)
        config = read_json(folder, CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (
        config.get("alora_invocation_tokens") is not None
        or bool(config.get(_EARLIER_KEY))
        or _exported_as_alora(folder)
    )


def config_here(path: str) -> AdapterConfig | None:
    """The configuration in a local folder; None where it cannot be read."""
    try:
        return read_config(path, path)
    except AdapterError:
        return None


def read_json(folder: str, name: str) -> Any:
    """What a JSON file of an adapter's folder holds; OSError or ValueError where it cannot be read."""
    return json.loads(Path(folder, name).read_bytes())


def _exported_as_alora(folder: str) -> bool:
    """Whether the folder is one of alora's own bundles, of an aLoRA: tools that drop PEFT's key leave this one."""
    try:
        manifest = read_json(folder, MANIFEST)
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("activated") is True
