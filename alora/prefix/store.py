"""Prefix KV kept across epochs: a constant of training need not be computed twice.

The KV of a prefix depends on the base and the prefix's ids alone, and each prefix is run by itself, so a run with a
store equals a run without one bit for bit. A full store keeps what it has: training visits every conversation once per
epoch, so LRU eviction would drop each entry shortly before it is needed. On disk, the store first evicts entries of
earlier runs that this run has not looked up, least recently used first, and treats entries of another base or version
in the same way.
"""

import contextlib
import hashlib
import os
import platform
import re
import time
import warnings
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from alora.base.cache import cache_folder
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.prefix.plan import PrefixKV

_FORMAT = b"2"  # of the files; files of another format are never asked for, and make room in their turn
_CHECKSUM, _IDS, _DTYPE, _LAYERS = "crc32", "ids", "dtype", "layers"
_KEPT_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")
_WRITING_FILE = re.compile(r"[0-9a-f]{64}\.(\d+)\.writing")
_DAY = 24 * 3600  # seconds; an unfinished file older than this is a leftover, even if its pid is in use again
Compute = Callable[[tuple[int, ...]], PrefixKV | None]


class PrefixStore(ABC):
    """Prefix KV by token ids, up to ``budget`` bytes; ``hits`` and ``misses`` count the look-ups."""

    def __init__(self, budget: int) -> None:
        self._budget = self._whole_budget = budget
        self._asked: set[int] = set()  # prefixes by their hash, each once however often it was asked for
        self._held: set[int] = set()
        self._refused: dict[int, int] = {}  # bytes
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
        kept, name = self._load(token_ids), hash(token_ids)
        self._asked.add(name)
        if kept is not None:
            self._held.add(name)
        self.hits += kept is not None
        self.misses += kept is None
        return kept

    def keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> None:
        """Keep the KV of ``token_ids``, unless the budget is spent."""
        size = sum(k.nbytes + v.nbytes for k, v in kv.layers)
        if size > self._budget:
            self._budget += self._make_room(size - self._budget)
        if size > self._budget:
            self._refused[hash(token_ids)] = size
        elif taken := self._keep(token_ids, kv):
            self._budget -= taken
            self._held.add(hash(token_ids))

    def shortfall(self) -> str | None:
        """What to say where the budget was spent before every prefix was kept."""
        refused = {name: size for name, size in self._refused.items() if name not in self._held}
        if not refused:
            return None
        asked = len(self._asked | self._held | refused.keys())
        return (
            f"the prefix cache kept {len(self._held)} of {asked} prefixes and the others were computed each time; "
            f"raise training.prefix_cache_bytes to about {self._whole_budget + sum(refused.values())}"
        )

    def _make_room(self, size: int) -> int:
        """Evict entries that nobody needs until ``size`` bytes are free or none is left; return the bytes freed."""
        return 0

    @abstractmethod
    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None: ...

    @abstractmethod
    def _keep(self, token_ids: tuple[int, ...], kv: PrefixKV) -> int:
        """The bytes that it takes; 0 where it could not be kept."""


def open_store(settings: TrainingSettings, base: LoadedBase) -> PrefixStore | None:
    """The store that ``training.prefix_cache`` asks for; on disk, in a folder for this base and arithmetic."""
    if settings.prefix_cache == "off":
        return None
    if settings.prefix_cache == "memory":
        return MemoryStore(settings.prefix_cache_bytes)
    every, device = cache_folder("prefix_kv"), base.model.device
    return DiskStore(every / _digest_of_arithmetic(base, device), settings.prefix_cache_bytes, device, among=every)


def _digest_of_arithmetic(base: LoadedBase, device: torch.device) -> str:
    """Digest of what decides a prefix's KV besides its ids: weights, precision, kernels, threads, device."""
    # Kernels differ in their last bits by all of these.
    parts = [
        *sorted(base.fingerprint.as_dict().values()),
        *(str(base.model.dtype), torch.get_float32_matmul_precision(), str(torch.get_num_threads())),
        *(torch.__version__, transformers.__version__, torch.backends.cpu.get_cpu_capability()),
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine(),
    ]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


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
        budget: bytes of all files that are there, other runs' included. Runs at the same time count each other's files
            only once, when they start.
        device: where loaded KV goes.
        among: a folder that holds ``folder`` and others of its kind, whose files count and make room too.
    """

    def __init__(self, folder: Path, budget: int, device: torch.device, among: Path | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(budget)
        self._folder, self._device = folder, device
        self._stale: dict[Path, int] = {}
        folders = [folder] if among is None else [entry for entry in among.iterdir() if entry.is_dir()]
        files = [file for each in folders for file in each.iterdir()]
        for file in files:
            if _is_cut_off(file):
                self._remove(file)
        found = [(file, stat) for file in files if _KEPT_FILE.fullmatch(file.name) and (stat := _stat(file))]
        # Of earlier runs, the one used last at the end; what this run asks for leaves the list.
        self._stale |= {file: stat.st_size for file, stat in sorted(found, key=lambda item: item[1].st_mtime)}
        self._budget -= sum(self._stale.values())
        self._budget += self._make_room(-self._budget)

    def _file(self, token_ids: tuple[int, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(_FORMAT + array('q', token_ids).tobytes()).hexdigest()}.safetensors"

    def _load(self, token_ids: tuple[int, ...]) -> PrefixKV | None:
        file = self._file(token_ids)
        try:
            layers = _read(file, len(token_ids))
        except FileNotFoundError:
            return None
        except (SafetensorError, KeyError, IndexError, ValueError, RuntimeError, OSError) as error:
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
            freed += self._remove(next(iter(self._stale)))
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
        staged = file.with_suffix(f".{os.getpid()}.writing")  # several processes may share the folder
        try:
            save_file(state, staged, _description(file, state))
            size = staged.stat().st_size
            self._budget += self._make_room(size - self._budget)  # a file is a little more than its tensors
            if size > self._budget:
                staged.unlink()
                self._refused[hash(token_ids)] = size
                return 0
            staged.replace(file)  # another process sees a whole file or none
        except (OSError, SafetensorError):  # a full disk costs time, not the run
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)
            return 0
        return size


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:  # another process was first
        return None


def _is_cut_off(file: Path) -> bool:
    """Whether a run began to write ``file`` and was killed."""
    named, stat = _WRITING_FILE.fullmatch(file.name), _stat(file)
    if named is None or stat is None:
        return False
    if stat.st_mtime < time.time() - _DAY:
        return True
    try:
        os.kill(int(named[1]), 0)  # sends nothing; asks whether the process lives
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # somebody else's
        return False
    return False


def _description(file: Path, state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Metadata of ``file``, which is named by the digest of the prefix's ids."""
    dtypes = sorted({str(tensor.dtype) for tensor in state.values()})
    return {
        _CHECKSUM: str(_checksum(state)),
        _IDS: file.stem,
        _DTYPE: " ".join(dtypes),
        _LAYERS: str(len(state) // 2),
    }


def _read(file: Path, length: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Raises KeyError, IndexError, RuntimeError or ValueError where the file is whole but not what was written for a
    prefix of ``length``."""
    with safe_open(file, framework="pt") as opened:
        state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 not a mapping
        written = opened.metadata() or {}
    for name, value in _description(file, state).items():
        if written[name] != value:
            raise ValueError(f"{name}: written {written[name]}, found {value}")
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
