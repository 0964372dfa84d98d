"""What an adapter folder says about itself: its invocation tokens and a digest of its weights.

A record is taken when an adapter is first seen and then kept, because the workers keep the weights that they loaded. If
the files change underneath, :meth:`Records.of` says so instead of mixing the two.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat

_CONFIG = "adapter_config.json"
_MANIFEST = "alora.json"
_PREFIXES = ("adapter_model.", "new_embeddings.")
_MEANINGFUL = (
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
    "use_dora",
)
_BASE_CHANGED = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True)
class AdapterRecord:
    """One adapter as it was when it was first seen."""

    path: str
    folder: str
    stamp: tuple[tuple[str, int, int, int], ...]
    invocation_tokens: tuple[int, ...]
    digest: str

    def unchanged(self) -> bool:
        """Whether every file of the adapter is still the one that was read; a few microseconds."""
        try:
            return all(_stamp_of(self.folder, was[0]) == was for was in self.stamp)
        except OSError:
            return False

    @property
    def is_alora(self) -> bool:
        return bool(self.invocation_tokens)


def _files(folder: str) -> list[Path]:
    try:
        names = sorted(entry.name for entry in Path(folder).iterdir())
    except OSError as error:
        raise AdapterError(f"{folder}: the adapter folder cannot be read ({error.strerror})") from error
    return [Path(folder, name) for name in names if name == _CONFIG or name.startswith(_PREFIXES)]


def _stamp_of(folder: str, name: str) -> tuple[str, int, int, int]:
    info = os.stat(f"{folder}/{name}")  # noqa: PTH116 (once per request; building a Path costs more than the call)
    return name, info.st_size, info.st_ino, info.st_mtime_ns


def _stamp(folder: str) -> tuple[tuple[str, int, int, int], ...]:
    """Name, size, inode and modification time of every file that makes the adapter: a change shows here."""
    return tuple(_stamp_of(folder, file.name) for file in _files(folder))


def invocation_tokens(folder: str) -> tuple[int, ...]:
    """PEFT's ``alora_invocation_tokens``, empty for an adapter that is not an aLoRA.

    Raises:
        AdapterError: the configuration is missing or damaged, or the tokens are not a list of ids.
    """
    file = Path(folder, _CONFIG)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{file}: not a readable PEFT configuration ({error})") from error
    tokens = config.get("alora_invocation_tokens") if isinstance(config, dict) else None
    if tokens is None:
        if _exported_as_alora(folder):
            raise AdapterError(
                f"{file} has no alora_invocation_tokens, but {_MANIFEST} beside it says that this is an aLoRA: a tool "
                "deleted the key, and the adapter would run as a wrong plain LoRA; restore the file"
            )
        return ()
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise AdapterError(f"{file}: alora_invocation_tokens is {tokens!r}, not a list of token ids")
    _require_read(config, file)
    return tuple(tokens)


def _require_read(config: dict[str, Any], file: Path) -> None:
    """AdapterError for what changes an adapter's meaning and this vLLM would drop: older ones know few keys."""
    used = [key for key in _MEANINGFUL if config.get(key)]
    if str(config.get("init_lora_weights", True)).split("_")[0].lower() in _BASE_CHANGED:
        used.append("init_lora_weights")
    dropped = sorted(set(used) - compat.peft_fields())
    if dropped:
        raise AdapterError(
            f"{file} sets {', '.join(dropped)}, which vLLM {compat.vllm_version()} does not read, so the adapter would "
            "answer wrong; serve it with a newer vLLM, or train it without"
        )


def claims_alora(path: str) -> bool:
    """Whether an adapter claims to be an aLoRA, however badly; what cannot be read claims nothing."""
    try:
        folder = compat.adapter_folder(path)
        config = json.loads(Path(folder, _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (
        config.get("alora_invocation_tokens") is not None or _exported_as_alora(folder)
    )


def _exported_as_alora(folder: str) -> bool:
    """Whether the folder is one of alora's own bundles, of an aLoRA: tools that drop PEFT's key leave this one."""
    try:
        manifest = json.loads(Path(folder, _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("activated") is True


def _digest(folder: str) -> str:
    sha = hashlib.sha256()
    for file in _files(folder):
        sha.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            sha.update(hashlib.file_digest(stream, "sha256").digest())
    return sha.hexdigest()


def read_record(path: str) -> AdapterRecord:
    """Read and digest the adapter at ``path`` (a folder, or a hub id that vLLM resolves).

    Raises:
        AdapterError: it cannot be read, or changed while it was being read.
    """
    folder = compat.adapter_folder(path)
    record = AdapterRecord(path, folder, _stamp(folder), invocation_tokens(folder), _digest(folder))
    if _stamp(folder) != record.stamp:
        raise AdapterError(
            f"{folder}: the adapter's files changed while they were being read; write beside, then rename"
        )
    return record


class Records:
    """The adapters of one engine, by the integer id under which the workers keep their weights."""

    def __init__(self) -> None:
        self._by_id: dict[int, AdapterRecord] = {}

    def of(self, lora_request: Any) -> tuple[AdapterRecord, bool]:
        """The record behind a LoRA request, and whether the workers must load the weights again for it.

        Raises:
            AdapterError: the id belongs to another adapter, or the files changed since the weights were loaded.
        """
        known = self._by_id.get(lora_request.lora_int_id)
        if known is None:
            return self.take(lora_request), bool(lora_request.load_inplace)
        if known.path == lora_request.lora_path and known.unchanged():
            return known, False
        if lora_request.load_inplace:
            return self.take(lora_request), True
        name, number = lora_request.lora_name, lora_request.lora_int_id
        if known.path != lora_request.lora_path:
            raise AdapterError(
                f"adapter {name!r} asks for {lora_request.lora_path} under LoRA id {number}, but that id holds "
                f"{known.path}; give every adapter an id of its own"
            )
        raise AdapterError(
            f"adapter {name!r}: the files in {known.path} changed after their weights were loaded; load the adapter "
            "again (load_inplace), or better, write new weights to a new folder"
        )

    def take(self, lora_request: Any) -> AdapterRecord:
        """Read the adapter afresh: its weights are about to be loaded."""
        record = read_record(lora_request.lora_path)
        self._by_id[lora_request.lora_int_id] = record
        return record

    def put_back(self, lora_id: int, record: AdapterRecord | None) -> None:
        """The adapter that the id holds after all, where loading another one failed."""
        self.forget(lora_id)
        if record is not None:
            self._by_id[lora_id] = record

    def known(self, lora_id: int) -> AdapterRecord | None:
        return self._by_id.get(lora_id)

    def forget(self, lora_id: int) -> None:
        self._by_id.pop(lora_id, None)
