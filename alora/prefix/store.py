"""Prefix KV kept across epochs: a constant of training need not be computed twice.

The KV of a prefix depends on the base and the prefix's ids alone, and each prefix is run by itself, so a run with a
store equals a run without one bit for bit. What came first stays: training visits every conversation once per epoch, so
replacing the oldest entry would replace each one shortly before it is needed. On disk, what earlier runs left and this
one has not asked for makes room first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from alora.prefix.packed import PrefixKV

_CHECKSUM = "crc32"
Compute = Callable[[tuple[int, ...]], PrefixKV | None]


class PrefixStore(ABC):
    """Prefix KV by token ids, up to ``budget`` bytes; ``hits`` and ``misses`` count the look-ups."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.hits = 0
        self.misses = 0

    def get(self, token_ids: tuple[int, ...], compute: Compute) -> PrefixKV | None:
        """The KV of ``token_ids``: kept, or computed and then kept while the budget lasts."""
        kept = self.look_up(token_ids)
        if kept is not None:
            return kept
        kv = compute(token_ids)
        if kv is not None:
            self.keep(token_ids, kv)
        return kv

    def look_up(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        """The KV of ``token_ids`` if it is kept."""
        kept = self._load(token_ids)
        self.hits += kept is not None
        self.misses += kept is None
        return kept

    def keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> None:
        """Keep the KV of ``token_ids``, unless the budget is spent."""
        size = sum(k.nbytes + v.nbytes for k, v in kv.layers)
        if size > self._budget:
            self._budget += self._make_room(size - self._budget)
        if size <= self._budget:
            self._budget -= self._keep(token_ids, kv)

    def _make_room(self, size: int) -> int:
        """Give up what nobody needs, at least ``size`` bytes if there are as many; the bytes that became free."""
        return 0

    @abstractmethod
    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None: ...

    @abstractmethod
    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> int:
        """The bytes that it takes; 0 where it could not be kept."""


class MemoryStore(PrefixStore):
    """Kept on the base's own device."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._kept: dict[tuple[int, ...], PrefixKV] = {}

    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        return self._kept.get(token_ids)

    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> int:
        self._kept[token_ids] = kv
        return sum(k.nbytes + v.nbytes for k, v in kv.layers)


class DiskStore(PrefixStore):
    """Kept as safetensors files, one per prefix, for later runs on the same base too.

    Args:
        folder: for this base and all else that the KV's bits hang on; the caller names it by their digest.
        device: where loaded KV goes.
    """

    def __init__(self, folder: Path, budget: int, device: torch.device) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        found = [(file, file.stat()) for file in folder.glob("*.safetensors")]
        super().__init__(budget - sum(stat.st_size for _, stat in found))
        self._folder, self._device = folder, device
        # Of earlier runs, the one used last at the end; what this run asks for leaves the list.
        self._stale = {file: stat.st_size for file, stat in sorted(found, key=lambda item: -item[1].st_mtime)}

    def _file(self, token_ids: tuple[int, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(array('q', token_ids).tobytes()).hexdigest()}.safetensors"

    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        file = self._file(token_ids)
        try:
            layers = _read(file, len(token_ids))
        except FileNotFoundError:
            return None
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            warnings.warn(f"{file} is damaged ({error}); its prefix is computed again", stacklevel=2)
            self._budget += self._remove(file)
            return None
        if self._stale.pop(file, None) is not None:
            with contextlib.suppress(OSError):
                os.utime(file)  # used last by this run
        return PrefixKV(tuple((k.to(self._device), v.to(self._device)) for k, v in layers), len(token_ids))

    def _make_room(self, size: int) -> int:
        freed = 0
        while freed < size and self._stale:
            freed += self._remove(next(reversed(self._stale)))
        return freed

    def _remove(self, file: Path) -> int:
        self._stale.pop(file, None)
        try:
            size = file.stat().st_size
            file.unlink()
        except OSError:  # another process was first, or the folder is read-only
            return 0
        return size

    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> int:
        state = {}
        for layer, (k, v) in enumerate(kv.layers):
            state |= {f"{layer}.k": k.cpu().contiguous(), f"{layer}.v": v.cpu().contiguous()}
        file = self._file(token_ids)
        beside = file.with_suffix(f".{os.getpid()}.writing")  # several processes may share the folder
        try:
            save_file(state, beside, {_CHECKSUM: str(_checksum(state))})
            size = beside.stat().st_size
            beside.replace(file)
        except (OSError, SafetensorError):  # a full disk costs time, not the run
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return 0
        return size


def _read(file: Path, length: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Raises KeyError or ValueError where the file is whole but not what was written for a prefix of ``length``."""
    with safe_open(file, framework="pt") as opened:
        state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 not a mapping
        written = (opened.metadata() or {})[_CHECKSUM]
    if str(_checksum(state)) != written:
        raise ValueError("its bytes are not the ones that were written")
    layers = tuple((state[f"{layer}.k"], state[f"{layer}.v"]) for layer in range(len(state) // 2))
    if not layers or any(k.shape[1] != length or v.shape[1] != length for k, v in layers):
        raise ValueError(f"not {length} tokens in every layer")
    return layers


def _checksum(state: Mapping[str, torch.Tensor]) -> int:
    """Against bit rot, which safetensors does not look for; not against an attacker."""
    found = 0
    for name in sorted(state):
        found = zlib.crc32(state[name].view(torch.uint8).numpy().data, found)
    return found
