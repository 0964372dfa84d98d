"""What an adapter folder says about itself: its invocation tokens and a digest of its weights.

A record is kept from an adapter's first accepted request on, because the workers keep the weights that they loaded.
Only ``EngineCore.add_lora``, which loads before it returns, puts another one in its place. If the files change
underneath, :meth:`Records.of` says so instead of mixing the two.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat

_CONFIG = "adapter_config.json"
_MANIFEST = "alora.json"
_EARLIER_KEY = "invocation_string"  # of the package alora 0.x by the paper's authors, before PEFT knew aLoRA
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
    adapts_head: bool = False

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


def _config(folder: str) -> tuple[Path, dict[str, Any]]:
    file = Path(folder, _CONFIG)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{file}: not a readable PEFT configuration ({error})") from error
    return file, config if isinstance(config, dict) else {}


def invocation_tokens(folder: str) -> tuple[int, ...]:
    """PEFT's ``alora_invocation_tokens``, empty for an adapter that is not an aLoRA.

    Raises:
        AdapterError: the configuration is missing or damaged, or the tokens are not a list of ids.
    """
    file, config = _config(folder)
    tokens = config.get("alora_invocation_tokens")
    if tokens is None:
        if _exported_as_alora(folder):
            raise AdapterError(
                f"{file} has no alora_invocation_tokens, but {_MANIFEST} beside it says that this is an aLoRA: a tool "
                "deleted the key, and the adapter would run as a wrong plain LoRA; restore the file"
            )
        if config.get(_EARLIER_KEY):
            raise AdapterError(
                f"{file} has {_EARLIER_KEY} and no alora_invocation_tokens, as the first aLoRA package wrote it: it "
                "would run as a wrong plain LoRA; add the token ids of that text as alora_invocation_tokens"
            )
        return ()
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        raise AdapterError(f"{file}: alora_invocation_tokens is {tokens!r}, not a list of token ids")
    _require_read(config, file)
    return tuple(tokens)


def _adapts_head(folder: str) -> bool:
    """Whether PEFT's ``target_modules``, names or a pattern, reach the output layer."""
    targets = _config(folder)[1].get("target_modules") or ()
    if isinstance(targets, str):
        return re.fullmatch(targets, "lm_head") is not None
    return any(str(name).split(".")[-1] == "lm_head" for name in targets)


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
        config.get("alora_invocation_tokens") is not None
        or bool(config.get(_EARLIER_KEY))
        or _exported_as_alora(folder)
    )


def config_stamp(path: str) -> tuple[int, int] | None:
    """Changes when the configuration in a local adapter folder does; None where there is none."""
    try:
        info = os.stat(f"{path}/{_CONFIG}")  # noqa: PTH116 (once per request, as above)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


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
    stamp, tokens = _stamp(folder), invocation_tokens(folder)
    record = AdapterRecord(path, folder, stamp, tokens, _digest(folder), bool(tokens) and _adapts_head(folder))
    if _stamp(folder) != record.stamp:
        raise AdapterError(
            f"{folder}: the adapter's files changed while they were being read; write beside, then rename"
        )
    return record


class Records:
    """The adapters of one engine, by the integer id under which the workers keep their weights."""

    def __init__(self) -> None:
        self._by_id: dict[int, AdapterRecord] = {}
        self._read: dict[str, AdapterRecord] = {}
        self._replaced: dict[int, int] = {}

    def of(self, lora_request: Any) -> AdapterRecord:
        """The record behind a LoRA request. Nothing is kept: the request may still be refused.

        Raises:
            AdapterError: the id belongs to another adapter, or an aLoRA's files hold other weights than were loaded.
        """
        known = self._by_id.get(lora_request.lora_int_id)
        if known is None:
            return self.read(lora_request.lora_path)
        name, number = lora_request.lora_name, lora_request.lora_int_id
        if known.path != lora_request.lora_path:
            raise AdapterError(
                f"adapter {name!r} asks for {lora_request.lora_path} under LoRA id {number}, but that id holds "
                f"{known.path}; give every adapter an id of its own"
            )
        if known.unchanged() or not Path(known.folder).is_dir():
            return known  # the workers have the weights, whether or not the files are still there
        try:
            now = self.read(known.path)
        except (AdapterError, OSError):
            now = None
        if now is not None and (now.digest, now.invocation_tokens) == (known.digest, known.invocation_tokens):
            self._by_id[number] = replace(known, stamp=now.stamp)
            return known
        if not known.is_alora and not lora_request.load_inplace and not claims_alora(known.path):
            return known  # as stock vLLM: plain LoRA goes on with what was loaded
        raise AdapterError(
            f"adapter {name!r}: the files in {known.path} changed after their weights were loaded; load the adapter "
            "again first (add_lora, or POST /v1/load_lora_adapter, with load_inplace), or better, write new weights "
            "to a new folder"
        )

    def read(self, path: str) -> AdapterRecord:
        """The adapter at ``path`` as it is now."""
        seen = self._read.get(path)
        plain_no_more = seen is not None and not seen.is_alora and claims_alora(path)  # a manifest came beside it
        if seen is None or plain_no_more or _stamp(seen.folder) != seen.stamp:
            seen = self._read[path] = read_record(path)
        return seen

    def hold(self, lora_id: int, record: AdapterRecord) -> None:
        """What the workers hold under ``lora_id``, or load for the request that is now accepted."""
        before = self._by_id.get(lora_id)
        if before is not None and before.digest != record.digest:
            self._replaced[lora_id] = self._replaced.get(lora_id, 0) + 1
        self._by_id[lora_id] = record

    def key(self, lora_id: int, record: AdapterRecord) -> str:
        """What tells the blocks of these weights from all others.

        The digest; and how often weights were replaced in place, because a request that was on its way meanwhile may
        have filled blocks by the new weights under the old key, which a roll-back must not find.
        """
        replaced = self._replaced.get(lora_id, 0)
        return f"{record.digest}+{replaced}" if replaced else record.digest

    def known(self, lora_id: int) -> AdapterRecord | None:
        return self._by_id.get(lora_id)

    def forget(self, lora_id: int) -> None:
        self._by_id.pop(lora_id, None)
