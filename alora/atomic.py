"""Files and folders that are whole or not there: written beside their place, flushed, then renamed."""

import ctypes
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` to ``path``; a reader sees the old file or the new one, never half of it.

    Raises:
        OSError: the folder cannot be written.
        ValueError: ``value`` holds NaN or infinity, which JSON does not have.
    """
    write_text(path, json_text(value) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` beside ``path``, flush it to the disk, then rename. Missing folders are made.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(beside).chmod(0o666 & ~umask)
        Path(beside).replace(target)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def replace_folder(beside: Path, folder: Path) -> None:
    """Put the finished folder ``beside`` in the place of ``folder``, which is there, old or new, at every moment.

    An old folder is left at ``beside``, for the caller to remove. Where the system cannot exchange two names in one
    step (renameat2, Linux 3.15; not every file system has it), the old folder moves away first, and a kill between
    the two renames leaves it beside, whole, under ``beside``'s name and ``.old``.

    Raises:
        OSError: the folder that holds them cannot be written, or they lie on different file systems.
    """
    if not folder.exists():
        beside.replace(folder)
    elif not _exchange(beside, folder):
        old = beside.with_name(beside.name + ".old")
        folder.replace(old)
        beside.replace(folder)
        old.replace(beside)


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
    """``value`` as indented JSON; lone surrogates are escaped, everything else stays readable."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    lone_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(value, indent=2, allow_nan=False) if lone_surrogate else text
