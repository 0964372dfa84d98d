"""Files and folders that are whole or absent: written under a temporary name in the same folder, flushed, then renamed.

A file that is being written has a mark in its name (:func:`part`). Only two kinds of files are ever removed: parts that
a killed process left, and files whose path alora knows as its own (:func:`remove_own`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.errors import RunError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = ".lock"
_PART = re.compile(r"\..*\.[0-9a-f]{8}\.alora-part", re.DOTALL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what a disk says to a write


def part(target: Path) -> Path:
    """A name next to ``target`` for what is not whole yet; :func:`is_part` recognises it."""
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.alora-part")


def is_part(path: Path) -> bool:
    """Whether ``path`` is named as something that is not whole yet."""
    return _PART.fullmatch(path.name) is not None


def alone_in(folder: Path, elsewhere: str) -> BaseFileLock:
    """Make ``folder`` and take its :data:`LOCK`, so that one process at a time works in it; ``elsewhere`` is the
    setting that names another one."""
    from filelock import FileLock, Timeout  # clients of a server write no folder, and do without it

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(f"another alora process works in {folder}; wait for it, or set {elsewhere}") from error
    return lock


def sweep(folder: Path) -> None:
    """Remove the parts that killed processes left directly in ``folder``, and nothing else."""
    for entry in [*folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else ():
        if is_part(entry):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value``, which holds no NaN, to ``path``; a reader sees the old file or the new one, never half of it."""
    write_text(path, json_text(value) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """:func:`write_pieces` of one piece."""
    write_pieces(path, [text])


def write_pieces(path: str | os.PathLike[str], pieces: Iterable[str | bytes]) -> None:
    """Write ``pieces`` as they come, as :func:`whole` does."""
    with whole(Path(path)) as staged, staged.open("xb") as stream:
        stream.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A name next to ``target`` to write to; then it is flushed to the disk and renamed. Missing folders are made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = part(target)
    try:
        yield staged
        flush(staged)
        staged.replace(target)
    except BaseException as error:
        staged.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = str(target)  # a write names no file, be it Python's or Arrow's
        raise


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk, so that the content is there before the rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_own(folder: Path, own: re.Pattern[str]) -> None:
    """Remove the files below ``folder`` whose path from there is one of ``own``, and the folders that this leaves
    empty; no link is followed or removed."""
    if folder.is_symlink():
        return
    for home, _, names in os.walk(folder, topdown=False):
        for path in (Path(home) / name for name in names):
            if not path.is_symlink() and own.fullmatch(path.relative_to(folder).as_posix()):
                path.unlink()
        with contextlib.suppress(OSError):
            Path(home).rmdir()


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """A new empty folder next to ``folder``, whose parents are made; what is in it at the end is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = part(folder)
    staged.mkdir()
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def replace_folder(staged: Path, folder: Path, own: Collection[str] = ()) -> None:
    """Replace ``folder`` by the finished folder ``staged``; at every moment there is the old one or the new one.

    The old folder may hold the files named in ``own``, and what the new one holds as well; OSError where it holds
    something else, which would be lost.

    An old folder is left at ``staged``, for the caller to remove. Where the system cannot exchange two names in one
    step (renameat2, Linux 3.15; not every file system has it), the old folder moves away first, and a kill between
    the two renames leaves it whole in the same folder, under ``staged``'s name and ``.old``.
    """
    kept = {entry.name for entry in staged.iterdir()}
    if lost := others(folder, {*own, *kept}):
        raise OSError(errno.EEXIST, f"holds {lost!r}, which alora did not write and would be lost", str(folder))
    if not folder.exists():
        staged.replace(folder)
    elif not _exchange(staged, folder):
        old = staged.with_name(staged.name + ".old")
        folder.replace(old)
        staged.replace(folder)
        old.replace(staged)


def others(folder: Path, own: Collection[str]) -> str | None:
    """The first entry of ``folder`` that is not a file named in ``own``; None where it is missing."""
    entries = (entry for entry in folder.iterdir()) if folder.is_dir() else ()
    return min((entry.name for entry in entries if entry.name not in own or not entry.is_file()), default=None)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EPERM)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where the system has no such step."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def json_text(value: Any) -> str:
    """``value`` as indented JSON; half of a surrogate pair is escaped, everything else stays readable."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace").decode()
