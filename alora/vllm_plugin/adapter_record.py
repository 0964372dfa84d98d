"""What an adapter folder says about itself, and the private copy of it that the workers load."""

import hashlib
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alora.errors import AdapterError
from alora.vllm_plugin import compat
from alora.vllm_plugin.adapter_config import MANIFEST, AdapterConfig, read_config
from alora.vllm_plugin.adapter_weights import require_sound
from alora.wire.weights import makes_adapter, weights_digest

FIRST_NUMBER = 2**30  # above every id that vLLM gives out, and within int32
_numbers = itertools.count(FIRST_NUMBER)
Stamp = tuple[tuple[str, int, int, int, int], ...]  # name, size, inode and times of change of each file


@dataclass(eq=False)
class AdapterRecord:
    """One set of files: ``copy`` holds what ``digest`` says, under a number that no other record ever gets."""

    path: str
    folder: str
    stamp: Stamp
    config: AdapterConfig
    digest: str
    copy: str
    number: int = field(default_factory=lambda: next(_numbers))
    refused: Stamp = ()  # the files as they were refused in its place
    loaded: bool = False  # the workers took it once, so they take it again
    unsent: Any = None  # deletes the copy with the record, until a worker may load it

    def unchanged(self) -> bool:
        """Whether every file of the adapter is still the one that was read; a few microseconds."""
        try:
            return all(_file_stamp(self.folder, was[0]) == was for was in self.stamp)
        except OSError:
            return False


def _files(folder: str) -> list[Path]:
    try:
        names = sorted(entry.name for entry in Path(folder).iterdir())
    except OSError as error:
        raise AdapterError(f"{folder}: the adapter folder cannot be read ({error.strerror})") from error
    return [Path(folder, name) for name in names if makes_adapter(name)]


def _file_stamp(folder: str, name: str) -> tuple[str, int, int, int, int]:
    info = os.stat(f"{folder}/{name}")  # noqa: PTH116 (once per request; building a Path costs more than the call)
    return name, info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns


def stamp_of(folder: str) -> Stamp:
    """Of every file that makes the adapter: a change shows here."""
    return tuple(_file_stamp(folder, file.name) for file in _files(folder))


def _copy(source: str, target: str) -> str:
    """Copy an adapter's files and return the digest of what makes it."""
    digests = dict[str, str]()
    for file in _files(source):
        with Path(shutil.copyfile(file, Path(target, file.name))).open("rb") as copied:
            digests[file.name] = hashlib.file_digest(copied, "sha256").hexdigest()
    if (manifest := Path(source, MANIFEST)).is_file():
        shutil.copyfile(manifest, Path(target, MANIFEST))
    return weights_digest(digests)


def read_record(path: str, copies: str) -> AdapterRecord:
    """Copy the adapter at ``path`` (a folder, or a hub id that vLLM resolves) into a folder of its own in ``copies``.

    AdapterError for one that cannot be read or copied, or changed meanwhile.
    """
    folder = compat.adapter_folder(path)
    stamp = stamp_of(folder)
    try:
        copy = tempfile.mkdtemp(dir=copies)
        try:
            digest = _copy(folder, copy)
            config = read_config(copy, folder)
            require_sound(copy, folder, config)
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
    return AdapterRecord(path, folder, stamp, config, digest, copy)
