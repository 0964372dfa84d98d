"""Checkpoints of an interrupted training: only those whose files still have their recorded digests are used."""

import re
import sys
from pathlib import Path

from tqdm import tqdm

from alora.atomic import write_json
from alora.errors import RunError
from alora.text import read_json, sha256_of
from alora.training.run_folder import remove_checkpoints

COMPLETE = "complete.json"  # written last, with the digest of each other file
PREFIX_CACHE = "prefix_cache.json"  # its budget: a resumed training keeps the same prefixes, whatever memory is free
_NAME = re.compile(r"checkpoint-(\d{1,12})")


def mark_complete(folder: Path, step: int) -> None:
    """Say that the checkpoint in ``folder`` was written to its end."""
    write_json(folder / COMPLETE, {"step": step, "files": _digests(folder)})


def last_whole_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is as it was written. Those that were cut off or changed are removed."""
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
        remove_checkpoints(folder)
    return whole[max(whole)] if whole else None  # by number: "checkpoint-90" sorts behind "checkpoint-100"


def _is_whole(folder: Path) -> bool:
    if not (folder / COMPLETE).is_file():
        return False
    try:
        return read_json(folder / COMPLETE, RunError, "remove it").get("files") == _digests(folder)
    except (RunError, OSError):
        return False


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
