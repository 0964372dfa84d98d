"""A run folder: what one run was asked, and what it has made so far.

    run.yaml         the recipe, reloadable as input, under the environment in comments
    inputs.json      digests of the data, the policy and the base that the run read
    checkpoints/     while training, for resume
    adapter/         the best checkpoint as a PEFT folder
    training.json    steps, best step, loss history
    evaluation.json  metrics, calibration and threshold
    identity.json    the KV identity certificate
    bundle/          what is shipped

A run of several policies has the middle five per policy, below ``policies/ID/``, and ships ``battery/``: a bundle
per policy and ``battery.json``. Each stage's output appears whole or not at all, so "is it there" is "is it done".
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from alora.atomic import is_part, remove_own, strangers, sweep, write_json
from alora.config.schema import Recipe
from alora.errors import RunError
from alora.reading import read_whole, require_plain

OUTPUTS = (
    "checkpoints",
    "adapter",
    "training.json",
    "evaluation.json",
    "identity.json",
    "bundle",
    "policies",
    "battery",
)
_INPUTS = "inputs.json"
LOCK = ".lock"
_KIND = "alora run"
ADAPTER = r"adapter_(?:config\.json|model\.safetensors)"
CHECKPOINT = r"(?:[^/]+/)?(?:checkpoint-\d+/.+|README\.md)"  # the card is TRL's
_ONE = rf"(?:training|evaluation|identity)\.json|adapter/{ADAPTER}"
_BUNDLE = rf"(?:alora|identity)\.json|golden\.jsonl|README\.md|{ADAPTER}"
# All that a run ever makes below its folder and may remove again.
_OWN = re.compile(
    rf"checkpoints/{CHECKPOINT}|{_ONE}|bundle/(?:{_BUNDLE})|policies/[^/]+/(?:{_ONE})"
    rf"|battery/(?:battery\.json|[^/]+/(?:{_BUNDLE}))"
)
# Settings that change nothing a stage has made: where it lies, and what a call prints or scores besides.
_FREE = ("run_dir", "artifact", "bundles", "engine", "conversation", "output", "json", "strict", "force",
         "compare", "judge", "fleet", "tracking", "serving")  # fmt: skip


@dataclass(frozen=True)
class PolicyPlaces:
    """Where one policy's outputs lie."""

    adapter: Path
    training: Path
    evaluation: Path
    identity: Path
    bundle: Path


class RunFolder:
    """One run's folder, held by one process at a time (use as a context manager).

    Args:
        recipe: the run's settings.
        writes: False for a process that only reads what the one that holds the folder has made.

    Raises:
        RunError: it cannot be written, another process holds it, or it belongs to a run with other settings.
    """

    def __init__(self, recipe: Recipe, writes: bool = True) -> None:
        self.path = Path(recipe.run_dir)
        self._recipe, self.writes = recipe, writes
        self._lock: BaseFileLock | None = None
        if writes:
            self._hold()

    def _hold(self) -> None:
        try:
            self._made = not self.path.is_dir()  # what is a file there fails to become one
            self._refuse_foreign()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._lock = hold_folder(self.path)

    def _refuse_foreign(self) -> None:
        if not self._made:
            require_plain(self.path, RunError, "run.yaml", _INPUTS, *OUTPUTS)
            read_claim(self.path, _KIND)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if self._made and [item.name for item in self.path.iterdir()] == [LOCK]:  # it failed before it began
                (self.path / LOCK).unlink()
                self.path.rmdir()
        self._lock.release()

    @property
    def settings(self) -> Path:
        """The reloadable recipe."""
        return self.path / "run.yaml"

    @property
    def checkpoints(self) -> Path:
        """What training goes on from."""
        return self.path / "checkpoints"

    @property
    def battery(self) -> Path:
        """The bundles of a run of several policies."""
        return self.path / "battery"

    def places(self, policy: str) -> PolicyPlaces:
        """Where the outputs of one policy lie: the folder itself when the run has only one."""
        several = bool(self._recipe.policies)
        home = self.path / "policies" / policy if several else self.path
        return PolicyPlaces(
            adapter=home / "adapter",
            training=home / "training.json",
            evaluation=home / "evaluation.json",
            identity=home / "identity.json",
            bundle=self.battery / policy if several else home / "bundle",
        )

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """Bind the folder to this recipe and these input digests; True when it already was (a resume).

        Raises:
            RunError: the folder holds outputs of a run with other settings or inputs, and ``force`` is not set.
        """
        claimed = {"kind": _KIND, "settings": _fixed_settings(self._recipe), "inputs": dict(inputs)}
        for home in (self.path, self.battery, *self.path.glob("policies/*")):
            sweep(home)  # what a killed process was writing
        before = read_claim(self.path, _KIND)
        if before == claimed:
            return True
        if before is not None and not self._recipe.force and self._has_outputs():
            changed = _changed(before, claimed)
            raise RunError(
                f"{self.path} holds a run with other settings: {'; '.join(changed[:5])}"
                f"{f' and {len(changed) - 5} more' if len(changed) > 5 else ''}. "
                "Choose another run_dir= (or name=), or start over with force=true"
            )
        self._clear()
        write_json(self.path / _INPUTS, claimed)
        return False

    def _has_outputs(self) -> bool:
        places = [self.path / name for name in OUTPUTS]
        return any(place.is_file() or (place.is_dir() and any(place.iterdir())) for place in places)

    def _clear(self) -> None:
        """Remove the outputs of the run before, unless something else lies among them."""
        remove_outputs(self.path, _OWN, OUTPUTS)
        (self.path / _INPUTS).unlink(missing_ok=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in ``folder``, and it, when nothing else lies there."""
    remove_own(folder, re.compile(CHECKPOINT))


def remove_outputs(folder: Path, own: re.Pattern[str], names: Sequence[str]) -> None:
    """Remove what a run has made below the entries ``names`` of its folder.

    Raises:
        RunError: something else lies among it; nothing is removed then.
    """
    if foreign := strangers(folder, own, names):
        raise RunError(
            f"{folder / foreign[0]} is no file of alora's, and lies where the run before is to be removed; move it "
            "away, or choose another run_dir="
        )
    remove_own(folder, own, names)


def read_claim(folder: Path, kind: str) -> dict[str, Any] | None:
    """The record of what ``folder`` belongs to; None where nothing lies there yet.

    Raises:
        RunError: the folder holds something else.
    """
    file = folder / _INPUTS
    try:
        content = json.loads(read_whole(file).decode())
    except FileNotFoundError:
        foreign = [path.name for path in folder.iterdir() if path.name != LOCK and not is_part(path)]
        if not foreign:
            return None
        raise RunError(
            f"{folder} is not empty (it holds {min(foreign)}) and belongs to no {kind}; alora keeps one in a folder of "
            "its own: choose another run_dir="
        ) from None
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{file} cannot be read ({error}); choose another run_dir=, or remove the folder") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise RunError(
            f"{file} is not the record of an {kind}, so {folder} belongs to something else, or to another version; "
            "choose another run_dir="
        )
    return content


def _fixed_settings(recipe: Recipe) -> dict[str, Any]:
    settings = asdict(recipe)
    for name in _FREE:
        settings.pop(name)
    return json.loads(json.dumps(settings))


def hold_folder(folder: Path) -> BaseFileLock:
    """Make ``folder`` and take its lock, so that one process at a time works in it.

    Raises:
        RunError: it cannot be written, or another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise RunError(f"another alora process works in {folder}; wait for it, or set run_dir=") from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    return lock


def _unwritable(folder: Path, error: OSError) -> RunError:
    return RunError(f"run folder {folder} cannot be written ({error.strerror}); set run_dir= elsewhere")


def holds_finished(recipe: Recipe, inputs: Mapping[str, str], policies: Sequence[str]) -> bool:
    """Whether the run folder of ``recipe`` holds a bundle of every policy, from these settings and ``inputs``.

    ``inputs`` may leave out what cannot be had without loading the base.
    """
    folder = Path(recipe.run_dir)
    try:
        claim = json.loads(read_whole(folder / _INPUTS).decode())
        same = claim["settings"] == _fixed_settings(recipe) and inputs.items() <= claim["inputs"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    if not recipe.policies:
        return same and (folder / "bundle").exists()
    home = folder / "battery"
    return same and (home / "battery.json").exists() and all((home / policy).exists() for policy in policies)


def trained_on(folder: Path) -> dict[str, str] | None:
    """Digests and policy texts that the run in ``folder`` was claimed for; None when it has no such record."""
    try:
        claim = json.loads(read_whole(folder / _INPUTS).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return claim.get("inputs") if isinstance(claim, dict) else None


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> list[str]:
    """``key: old -> new`` for every leaf that differs."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        name = key if where in ("", "settings") else f"{where}.{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _changed(old, new, name)
        elif old != new:
            lines.append(f"{name}: {_short(old)} -> {_short(new)}")
    return lines


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-18:]}"
