"""The place of a bundle on disk: filled beside it, flushed, and only then renamed there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from alora.atomic import replace_folder
from alora.bundle.manifest import MANIFEST_FILE
from alora.errors import BundleError


def put_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write and check a folder beside ``folder``, then rename it there; whatever fails leaves nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as workshop:
            beside = Path(workshop) / folder.name
            fill(beside)
            replace_folder(beside, folder)
            flush(folder.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BundleError(
            f"the bundle cannot be written to {folder}: {reason}; give a writable output= with space"
        ) from error


def require_place(folder: Path) -> None:
    """Only a bundle or nothing is ever replaced."""
    if folder.is_dir() and not (folder / MANIFEST_FILE).exists() and any(folder.iterdir()):
        raise BundleError(f"{folder} exists and is not a bundle; give another output= or remove it")
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"{folder} is a file; give another output=")


def flush(path: Path) -> None:
    """Bring a file, or a folder's entries, to the disk, so that the rename cannot outrun the content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
