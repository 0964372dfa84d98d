"""Files that are whole or not there: written beside their place, flushed, then renamed."""

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


def json_text(value: Any) -> str:
    """``value`` as indented JSON; lone surrogates are escaped, everything else stays readable."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    lone_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    return json.dumps(value, indent=2, allow_nan=False) if lone_surrogate else text
