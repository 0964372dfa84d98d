"""Prefix KV kept across epochs: a constant of training need not be computed twice.

The KV of a prefix depends on the base and the prefix's ids alone, and each prefix is run by itself, so a run with a
store equals a run without one bit for bit. What came first stays: training visits every conversation once per epoch, so
replacing the oldest entry would replace each one shortly before it is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from alora.prefix.packed import PrefixKV

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
        if size <= self._budget and self._keep(token_ids, kv):
            self._budget -= size

    @abstractmethod
    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None: ...

    @abstractmethod
    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> bool: ...


class MemoryStore(PrefixStore):
    """Kept on the base's own device."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._kept: dict[tuple[int, ...], PrefixKV] = {}

    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        return self._kept.get(token_ids)

    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> bool:
        self._kept[token_ids] = kv
        return True


class DiskStore(PrefixStore):
    """Kept as safetensors files, one per prefix, for later runs on the same base too.

    Args:
        folder: for this base, dtype and device alone; the caller names it by their digest.
        device: where loaded KV goes.
    """

    def __init__(self, folder: Path, budget: int, device: torch.device) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(budget - sum(file.stat().st_size for file in folder.glob("*.safetensors")))
        self._folder, self._device = folder, device

    def _file(self, token_ids: tuple[int, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(array('q', token_ids).tobytes()).hexdigest()}.safetensors"

    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        try:
            state = load_file(self._file(token_ids), device=str(self._device))
        except (FileNotFoundError, SafetensorError):  # absent, or damaged: compute it again
            return None
        layers = tuple((state[f"{layer}.k"], state[f"{layer}.v"]) for layer in range(len(state) // 2))
        return PrefixKV(layers, len(token_ids))

    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> bool:
        state = {}
        for layer, (k, v) in enumerate(kv.layers):
            state |= {f"{layer}.k": k.contiguous(), f"{layer}.v": v.contiguous()}
        file = self._file(token_ids)
        beside = file.with_suffix(f".{os.getpid()}.writing")  # several processes may share the folder
        try:
            save_file(state, beside)
            beside.replace(file)
        except (OSError, SafetensorError):  # a full disk costs time, not the run
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
        return True
