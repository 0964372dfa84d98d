"""Checkpoints of an interrupted training: only those whose files still have their recorded digests are used."""

import re
import sys
from pathlib import Path

from tqdm import tqdm

from alora.atomic import remove_own, write_json
from alora.errors import RunError
from alora.reading import read_json, sha256_of
from alora.training.run_folder import CHECKPOINT

COMPLETE = "complete.json"  # written last, with the digest of each other file
PREFIX_CACHE = "prefix_cache.json"  # its budget: a resumed training keeps the same prefixes, whatever memory is free
_NAME = re.compile(r"checkpoint-(\d{1,12})")


def mark_complete(folder: Path, step: int) -> None:
    """Say that the checkpoint in ``folder`` was written to its end."""
    write_json(folder / COMPLETE, {"step": step, "files": _digests(folder)})


def last_whole_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is as it was written. Those that were cut off or changed are removed.

    Raises:
        RunError: in one of them lies what alora has not written; the next checkpoint there would be written through it.
    """
    whole: dict[int, Path] = {}
    for folder in checkpoints.glob("checkpoint-*"):
        number = _NAME.fullmatch(folder.name)
        if number is None:
            continue
        if _is_whole(folder):
            whole[int(number[1])] = folder
            continue
        if (folder / COMPLETE).exists():
            tqdm.write(f"{folder} was changed since it was written; training goes on without it", file=sys.stderr)
        remove_own(checkpoints, re.compile(CHECKPOINT), [folder.name])
        if folder.exists() or folder.is_symlink():
            raise RunError(f"{folder} holds something that alora has not written, such as a link; move it away")
    return whole[max(whole)] if whole else None  # by number: "checkpoint-90" sorts behind "checkpoint-100"


def _is_whole(folder: Path) -> bool:
    if folder.is_symlink() or not (folder / COMPLETE).is_file():
        return False
    try:
        return read_json(folder / COMPLETE, RunError, "remove it").get("files") == _digests(folder)
    except (RunError, OSError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    """sha256 of every file in a checkpoint; a link or a pipe has none, so that nothing equals it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name == COMPLETE or path.is_dir():
            continue
        if path.is_symlink() or not path.is_file():
            raise OSError(f"{path} is not a plain file")
        found[path.relative_to(folder).as_posix()] = sha256_of(path)
    return found
