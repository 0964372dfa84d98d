"""The layout of a run folder, for the code that writes it and the code that opens it.

    run.yaml       the recipe, reloadable as input, under the environment in comments
    inputs.json    the claim: the settings, and digests of the data, the policies and the base that the run read
    checkpoints/   while training, for resume
    policies/ID/   one policy's adapter/, training.json, evaluation.json, predictions.parquet, report.html and
                   identity.json
    battery/       what is shipped: battery.json, and ID/ with the bundle of each policy
    report.html    of several policies: a table, and a link to each one's page
    bundle         in a run of one policy, a link to battery/ID; adapter and report.html are links into policies/ID

training.json and evaluation.json name the adapter that they are of, identity.json the base and the adapter, a bundle
the base, the adapter and its own files. Of the checkpoints of an interrupted training only those are used whose files
still have their recorded digests.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from alora.atomic import write_json
from alora.errors import AloraError, RunError
from alora.received import Folder
from alora.text import note, read_json, sha256_of

RUN_FILE = "run.yaml"
INPUTS_FILE = "inputs.json"
BATTERY, POLICIES, BUNDLE, ADAPTER = "battery", "policies", "bundle", "adapter"
TRAINING, EVALUATION, IDENTITY = "training.json", "evaluation.json", "identity.json"
PREDICTIONS, REPORT = "predictions.parquet", "report.html"
CHECKPOINTS = "checkpoints"
# Of a checkpoint: written last, with the digest of each other file; and the budget of its prefix cache, so that a
# resumed training keeps the same prefixes, whatever memory is free.
COMPLETE, PREFIX_CACHE = "complete.json", "prefix_cache.json"
OUTPUTS = (CHECKPOINTS, POLICIES, BATTERY, BUNDLE, ADAPTER, REPORT)
# By which a page and a Parquet file are known as alora's own.
PAGE_MARK, MARK = "<!-- alora report -->", "alora"
PREDICTED = "predictions"  # what the mark says of the table of an evaluation
_PARTS = re.compile(rf"\.|{BATTERY}(/[^/]+)?|{POLICIES}/[^/]+(/{ADAPTER})?|{BUNDLE}|{ADAPTER}")
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")
_LINKS = {BUNDLE: f"{BATTERY}/{{}}", ADAPTER: f"{POLICIES}/{{}}/{ADAPTER}", REPORT: f"{POLICIES}/{{}}/{REPORT}"}


def run_of(folder: Path) -> Path | None:
    """The run that ``folder`` is, or that it is a part of."""
    whole = folder.absolute()
    for run in (whole, *whole.parents[:3]):
        if os.path.lexists(run / RUN_FILE) and _PARTS.fullmatch(whole.relative_to(run).as_posix()):
            return run
    return None


def home_of(folder: Path) -> Path:
    """Where the records of the adapter or bundle in ``folder`` lie: with its policy in the run, else in ``folder``."""
    run = run_of(folder)
    if run is None:
        return folder
    _, *names = folder.absolute().relative_to(run).parts or ("",)
    return run / POLICIES / names[0] if names else run


def link_only(run: Path, policy: str) -> None:
    """Link ``bundle``, ``adapter`` and ``report.html`` to those of the only policy, where they exist and the file
    system has links."""
    for name, target in _LINKS.items():
        with contextlib.suppress(OSError):
            if (run / target.format(policy)).exists():
                (run / name).symlink_to(target.format(policy))


def own_link(path: Path) -> Path | None:
    """The target of ``path`` if it is a link that :func:`link_only` makes; None for anything else, other links
    included."""
    pattern = _LINKS.get(path.name)
    if pattern is None or not path.is_symlink():
        return None
    target = path.readlink().as_posix()
    own = re.fullmatch(re.escape(pattern).replace(r"\{\}", r"(?!\.)[^/]+"), target)
    return path.parent / target if own else None


def require_plain_run(run: Path, refusal: type[AloraError], outputs: Sequence[str] = OUTPUTS) -> None:
    """Refuse a run with links out of it: only its own links to its only policy are allowed."""
    names = (name for name in (RUN_FILE, INPUTS_FILE, *outputs) if own_link(run / name) is None)
    Folder(run, refusal, "get the folder again", *names)


def mark_complete(folder: Path, step: int) -> None:
    """Say that the checkpoint in ``folder`` was written to its end."""
    write_json(folder / COMPLETE, {"step": step, "files": _digests(folder)})


def last_whole_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is as it was written. Those that were cut off or changed are removed."""
    whole: dict[int, Path] = {}
    for folder in checkpoints.glob("checkpoint-*"):
        number = _CHECKPOINT.fullmatch(folder.name)
        if number is None:
            continue
        if _is_whole(folder):
            whole[int(number[1])] = folder
            continue
        if (folder / COMPLETE).exists():
            note(f"{folder} was changed since it was written; training goes on without it")
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


def remove_checkpoints(folder: Path) -> None:
    """Remove ``folder``, in which alora keeps nothing but checkpoints; a link is left alone."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
