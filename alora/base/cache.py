"""The user's cache folder, and small values remembered in it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """``$ALORA_CACHE``, else ``$XDG_CACHE_HOME/alora``, else ``~/.cache/alora``."""
    if chosen := os.environ.get("ALORA_CACHE"):
        return Path(chosen)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "alora"
    return Path.home() / ".cache" / "alora"


def cache_folder(kind: str) -> Path:
    """A folder of the cache, made when missing."""
    folder = cache_root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remember(file: Path, compute: Callable[[], str]) -> str:
    """The text in ``file``, or ``compute()`` stored there; a cache that cannot be written costs only time."""
    try:
        return file.read_text()
    except OSError:
        value = compute()
    try:
        write_atomically(file, value.encode())
    except OSError:
        pass
    return value


def write_atomically(file: Path, content: bytes) -> None:
    """Write beside and rename, so that ``file`` is whole or absent."""
    handle, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(beside).chmod(0o644)
        Path(beside).replace(file)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
