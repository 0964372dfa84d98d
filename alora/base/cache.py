"""The user's cache folder, and small values remembered in it."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from alora.atomic import write_text
from alora.errors import BaseError


def cache_root() -> Path:
    """``$ALORA_CACHE``, else ``$XDG_CACHE_HOME/alora``, else ``~/.cache/alora``."""
    if chosen := os.environ.get("ALORA_CACHE"):
        return Path(chosen)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "alora"
    try:
        return Path.home() / ".cache" / "alora"
    except RuntimeError as error:
        raise BaseError("this account has no home folder; set ALORA_CACHE to a folder of yours") from error


def cache_folder(kind: str) -> Path:
    """A folder of the cache, made when missing."""
    folder = cache_root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def working_folder(folder: Path) -> Iterator[Path]:
    """``folder``, empty, for the time of the block, for the holder of its lock; what a killed process left there is
    removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remember_of(files: Sequence[Path], suffix: str, compute: Callable[[], str]) -> str:
    """What ``compute`` says of ``files``, remembered by each one's path, inode, size and times. ``compute`` opens them
    itself: what was opened before may be of other files than those that are looked at here. The time of the last change
    counts too, since ``cp -p`` and archives set the time of the last write. A cache that cannot be written costs only
    time."""
    found = [(str(file.resolve()), file.stat()) for file in files]
    states = [(name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in found]
    key = hashlib.sha256(json.dumps(states).encode("utf-8", "surrogatepass")).hexdigest()
    try:
        file = cache_folder("fingerprints") / f"{key}{suffix}"
    except (OSError, BaseError):
        return compute()
    try:
        return file.read_text()
    except OSError:
        value = compute()
    with contextlib.suppress(OSError):
        write_text(file, value)
    return value
