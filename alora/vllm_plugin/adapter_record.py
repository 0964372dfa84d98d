"""What an adapter folder says about itself, and the private copy of it that the workers load."""

import hashlib
import itertools
import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.adapter_config import MANIFEST, AdapterConfig, read_config
from alora.vllm_plugin.adapter_weights import require_sound
from alora.weights import makes_adapter, require_whole, weights_digest

FIRST_NUMBER = 2**30  # above every id that vLLM gives out, and within int32
_numbers = itertools.count(FIRST_NUMBER)


class NoFile(AdapterError):
    """What no reader may open, stock vLLM's included: a pipe, which might wait for ever, or a file without weights."""


@dataclass(eq=False)
class AdapterRecord:
    """One set of files: ``copy`` holds what ``digest`` says, under a number that no other record ever gets."""

    path: str
    folder: str
    stamp: tuple[tuple[str, int, int, int, int], ...]
    config: AdapterConfig
    digest: str
    copy: str
    opened: tuple[tuple[str, str], ...] = ()  # name, and path as an open file, of what the copy holds
    number: int = field(default_factory=lambda: next(_numbers))
    refused: tuple[tuple[str, int, int, int, int], ...] = ()  # the files as they were refused in its place
    loaded: bool = False  # the workers took it once, so they take it again
    unsent: Any = None  # deletes the copy with the record, until a worker may load it

    def unchanged(self) -> bool:
        """Whether every file of the adapter is still the one that was read; a few microseconds."""
        try:
            return all(_file_stamp(self.folder, was[0]) == was for was in self.stamp)
        except OSError:
            return False

    def meaning(self) -> tuple[str, str]:
        """What an id goes on to mean once its copy is gone; other weights of a plain LoRA are vLLM's own business."""
        return self.path, self.digest if self.config.is_alora else ""


def _files(folder: str) -> list[Path]:
    try:
        names = sorted(entry.name for entry in Path(folder).iterdir())
    except OSError as error:
        raise AdapterError(f"{folder}: the adapter folder cannot be read ({error.strerror})") from error
    return [Path(folder, name) for name in names if makes_adapter(name)]


def _file_stamp(folder: str, name: str) -> tuple[str, int, int, int, int]:
    info = os.stat(f"{folder}/{name}")  # noqa: PTH116 (once per request; building a Path costs more than the call)
    return name, info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns


def stamp_of(folder: str) -> tuple[tuple[str, int, int, int, int], ...]:
    """Name, size, inode and times of change of every file that makes the adapter: a change shows here."""
    return tuple(_file_stamp(folder, file.name) for file in _files(folder))


def _copy_file(file: Path, target: Path) -> str:
    """Copy the bytes that ``file`` has now, read once, and digest what was written."""
    if not file.is_file():
        raise NoFile(f"{file} is a pipe or a device, not a file; write the file itself there")
    require_whole(file, NoFile)
    digest = hashlib.sha256()
    with file.open("rb") as stream, target.open("wb") as written:
        left = os.fstat(stream.fileno()).st_size
        while chunk := stream.read(min(left, 1 << 20)):
            left -= len(chunk)
            digest.update(chunk)
            written.write(chunk)
    return digest.hexdigest()


def _copy(source: str, target: str) -> str:
    """Copy an adapter's files and return the digest of what makes it."""
    digests = {file.name: _copy_file(file, Path(target, file.name)) for file in _files(source)}
    if (manifest := Path(source, MANIFEST)).is_file():
        _copy_file(manifest, Path(target, MANIFEST))
    return weights_digest(digests)


def _keep_open(record: AdapterRecord) -> None:
    """Hold the copy's files open while the record lives: they can be read after a cleaner of temporary files came."""
    for name, *_ in record.stamp:
        file = os.open(f"{record.copy}/{name}", os.O_RDONLY)
        weakref.finalize(record, os.close, file).atexit = False  # the process closes them as it ends
        record.opened += ((name, f"/proc/{os.getpid()}/fd/{file}"),)


def read_record(path: str, copies: str) -> AdapterRecord:
    """Copy the adapter at ``path`` (a folder, or a hub id that vLLM resolves) into a folder of its own in ``copies``.

    Raises:
        AdapterError: it cannot be read or copied, or changed meanwhile.
    """
    folder = compat.adapter_folder(path)
    stamp = stamp_of(folder)
    try:
        copy = tempfile.mkdtemp(dir=copies)
        try:
            digest = _copy(folder, copy)
            config = read_config(copy, folder)
            require_sound(copy, folder, config)
            record = AdapterRecord(path, folder, stamp, config, digest, copy)
            _keep_open(record)
            if stamp_of(folder) != stamp:  # config and weights may be of two versions
                raise AdapterError(
                    f"{folder}: the adapter's files changed while they were being read; write them to another folder, "
                    "then rename it"
                )
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
    except OSError as error:
        raise AdapterError(f"{folder}: cannot be copied to {copies} ({error}); TMPDIR names another place") from error
    return record
