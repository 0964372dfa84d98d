"""Where a bundle is written: which folders it may replace; written under a temporary name, flushed, then renamed."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from alora.atomic import flush, others, replace_folder, workshop
from alora.bundle.manifest import BUNDLE_FILES, MANIFEST_FILE, read_manifest
from alora.errors import BundleError
from alora.layout import own_link


def put_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write and check a folder next to ``folder``, then rename it there; whatever fails leaves nothing."""
    folder = own_link(folder) or folder  # what a run's own link leads to is replaced, and not the link
    try:
        with workshop(folder) as parent:
            staged = parent / folder.name
            fill(staged)
            replace_folder(staged, folder, BUNDLE_FILES)
            flush(folder.parent)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BundleError(
            f"the bundle cannot be written to {folder}: {reason}; give a writable output= with space"
        ) from error


def require_replaceable(folder: Path, policy: str) -> None:
    """BundleError unless ``folder`` is free or holds a bundle of ``policy`` (an id) and nothing else: only that may be
    replaced."""
    folder = own_link(folder) or folder  # as in put_folder
    if folder.is_symlink():
        raise BundleError(f"{folder} is a link, which a folder would replace; name the folder that it leads to")
    if outer := next((parent for parent in folder.parents if (parent / MANIFEST_FILE).exists()), None):
        raise BundleError(f"{folder} lies in the bundle {outer}, which holds its own files alone; give another output=")
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"{folder} is a file; give another output=")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        there = read_manifest(folder).policy.id
    except BundleError as error:
        raise BundleError(
            f"{folder} exists and is not a bundle; give another output= or remove it ({error})"
        ) from error
    if there != policy:
        raise BundleError(f"{folder} holds the bundle of the policy {there!r}, not of {policy!r}; give another output=")
    if stranger := others(folder, BUNDLE_FILES):
        raise BundleError(
            f"{folder} holds {stranger!r} besides the bundle, and would be replaced as a whole; move it away, or give "
            "another output="
        )
