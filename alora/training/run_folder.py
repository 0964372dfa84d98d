"""A run folder: what one run was asked, and what it has made so far.

A folder holds one run (or one comparison) of one set of inputs: the same command goes on in it, another one is refused
with the folder to take instead. :mod:`alora.training.layout` names the paths. Each stage's output appears whole or not
at all, so "is it there" is "is it done".
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from filelock import BaseFileLock

from alora.atomic import LOCK, alone_in, is_part, sweep, write_json
from alora.base.fingerprint import Fingerprint
from alora.config.describe import without_effect
from alora.config.schema import AdapterSettings, BaseSettings, DataSettings, PromptSettings, Recipe
from alora.errors import RunError
from alora.received import CHANGED, DAMAGED, NOT_OURS, decode, read_record, refused, sealed
from alora.text import leaves
from alora.training import layout

RUN = "alora run"  # the kind of a training run's claim
# What a run's adapters and their verdicts were made with, of run.yaml. Where its base and rows lie may change.
_SECTIONS = {"base": BaseSettings, "adapter": AdapterSettings, "prompt": PromptSettings, "data": DataSettings}
_MAY_CHANGE = ("train", "validation", "test")  # of data
# What `alora train` uses, and nothing that it makes depends on: its folder, and what a call prints, sends or scores.
_FREE = {"run_dir", "conversation", "strict", "tracking", "judge", "generate", "export.push_to",
         "export.private"}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """The record of what a folder belongs to: settings, and digests of what was read."""

    kind: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def base(self) -> Fingerprint:
        """The base that it was trained on; TypeError where it names none."""
        digests = {name.removeprefix("base "): value for name, value in self.inputs.items() if name.startswith("base ")}
        return decode(Fingerprint, digests, "inputs.base")

    @property
    def policies(self) -> list[str]:
        """The ids of the policies that it is for."""
        return [name.removeprefix("policy ") for name in self.inputs if name.startswith("policy ")]

    @property
    def digest(self) -> str:
        """By which the folder of a run with these inputs is named."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def changed(self, now: "Claim") -> list[str]:
        """What is not the same ``now``, of all that the folder's contents depend on."""
        fixed = settings_of_training if self.kind == RUN else dict
        return changed_settings(*({"settings": fixed(one.settings), "inputs": one.inputs} for one in (self, now)))


def settings_of_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a recipe's settings those that what a run makes depends on, by their dotted keys."""
    values = dict(leaves(settings))
    other = {*without_effect("train", values), *(key for key in values if {key, key.partition(".")[0]} & _FREE)}
    return {key: value for key, value in values.items() if key not in other}


def read_claim(folder: Path, kind: str) -> Claim | None:
    """The record of what ``folder`` belongs to; None where nothing lies there yet."""
    file = folder / layout.INPUTS_FILE
    if not file.exists():
        foreign = [path.name for path in folder.iterdir() if path.name != LOCK and not is_part(path)]
        if not foreign:
            return None
        raise RunError(
            f"{folder} is not empty (it holds {min(foreign)}) and belongs to no {kind}; alora keeps one in a folder of "
            "its own: choose another run_dir="
        )
    return _parsed(file, kind, "choose another run_dir=, or remove the folder")


def _parsed(file: Path, kind: str, remedy: str) -> Claim:
    claim = read_record(Claim, file, RunError, remedy)
    if claim.kind != kind:
        raise refused(RunError, NOT_OURS, f"{file} is of an {claim.kind}, not of an {kind}; {remedy}")
    return claim


def open_claim(run: Path, recipe: Recipe) -> Claim:
    """The claim of the run in ``run``, which is opened to use what it has made; ``recipe`` is its ``run.yaml``."""
    file, remedy = run / layout.INPUTS_FILE, "train again, or name a bundle of it alone, which has a record of its own"
    claim = _parsed(file, RUN, remedy)
    try:
        _ = claim.base
        then = replace(Recipe(), **{name: decode(kind, claim.settings[name], name) for name, kind in _SECTIONS.items()})
    except (TypeError, KeyError) as error:
        raise refused(
            RunError, DAMAGED, f"{file} is not the record of this version's run ({error}); {remedy}"
        ) from error
    if changed := changed_settings(_made_with(then), _made_with(recipe)):
        why = f"{run / layout.RUN_FILE} is not as it was when {run} was trained: {'; '.join(changed[:5])}"
        raise refused(RunError, CHANGED, f"{why}; put it back, or train again")
    return claim


def _made_with(recipe: Recipe) -> dict[str, Any]:
    values = {name: asdict(getattr(recipe, name)) for name in _SECTIONS}
    data = {name: value for name, value in values["data"].items() if name not in _MAY_CHANGE}
    values |= {"base": {"template_kwargs": values["base"]["template_kwargs"]}, "data": data}
    return settings_of_training(values)


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` as they are read back from JSON."""
    return json.loads(json.dumps(settings))


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """``key: old -> new`` for every leaf that differs."""
    old, new = ({key: value for key, value in leaves(claim) if value != {}} for claim in (before, now))
    differing = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    return [f"{key.removeprefix('settings.')}: {_apart(str(old.get(key)), str(new.get(key)))}" for key in differing]


def _apart(old: str, new: str) -> str:
    """``old -> new``; of long texts the place where they part."""
    same = next(
        (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new))
    )
    start = max(same - 10, 0) if max(len(old), len(new)) > 40 else 0
    shown = [text[start:] if len(text) <= start + 40 else f"{text[start : start + 37]}..." for text in (old, new)]
    return " -> ".join(f"...{text}" if start else text for text in shown)


@dataclass(frozen=True)
class PolicyPaths:
    """Where one policy's outputs lie."""

    adapter: Path
    training: Path
    predictions: Path
    report: Path
    evaluation: Path
    identity: Path
    bundle: Path


class ClaimedFolder:
    """An output folder of one ``kind``, bound to one recipe and locked by one process at a time (a context manager).
    The recipe's ``run_dir`` is its place. A process that only reads (``writes`` is False) takes no lock."""

    kind: ClassVar[str]  # in its record
    outputs: ClassVar[Sequence[str]]  # the entries that hold what it made

    def __init__(self, recipe: Recipe, writes: bool = True) -> None:
        self.path = Path(recipe.run_dir)
        self._recipe, self.writes = recipe, writes
        self._lock: BaseFileLock | None = None
        if writes:
            self._hold()

    def _hold(self) -> None:
        try:
            self._made = not self.path.is_dir()  # what is a file there fails to become one
            if not self._made:
                layout.require_plain_run(self.path, RunError, self.outputs)
                read_claim(self.path, self.kind)
            self._lock = alone_in(self.path, "run_dir=")
        except OSError as error:
            raise RunError(
                f"run folder {self.path} cannot be written ({error.strerror}); set run_dir= elsewhere"
            ) from error

    def __enter__(self) -> Self:
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
        return self.path / layout.RUN_FILE

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that what it made depends on."""
        raise NotImplementedError

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """Bind the folder to this recipe and these input digests; True when it already was (a resume)."""
        # Through JSON, as the record is: a tuple would differ from its list.
        claimed = Claim(self.kind, plain(self.fixed_settings()), dict(inputs))
        before = read_claim(self.path, self.kind)
        if before is not None:
            changed = before.changed(claimed)
            if not changed:
                return True
            if self._holds_outputs():
                more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
                raise RunError(
                    f"{self.path} holds a {self.kind.removeprefix('alora ')} with other settings: "
                    f"{'; '.join(changed[:5])}{more}. Add run_dir={self.path}-{claimed.digest[:6]} (or a name=), or "
                    "remove that folder"
                )
        write_json(self.path / layout.INPUTS_FILE, sealed(asdict(claimed)))
        return False

    def _holds_outputs(self) -> bool:
        paths = [self.path / name for name in self.outputs]
        return any(path.is_file() or (path.is_dir() and any(path.iterdir())) for path in paths)


class RunFolder(ClaimedFolder):
    """The folder of one training run."""

    kind = RUN
    outputs = layout.OUTPUTS

    @property
    def checkpoints(self) -> Path:
        """What training goes on from."""
        return self.path / layout.CHECKPOINTS

    @property
    def battery(self) -> Path:
        """What is shipped."""
        return self.path / layout.BATTERY

    def paths(self, policy: str) -> PolicyPaths:
        home = self.path / layout.POLICIES / policy
        names = (layout.ADAPTER, layout.TRAINING, layout.PREDICTIONS, layout.REPORT, layout.EVALUATION, layout.IDENTITY)
        return PolicyPaths(*(home / name for name in names), bundle=self.battery / policy)

    def fixed_settings(self) -> dict[str, Any]:
        settings = asdict(self._recipe)
        sections = {key.partition(".")[0] for key in settings_of_training(settings)}
        return {name: value for name, value in settings.items() if name in sections}

    def claim(self, inputs: Mapping[str, str]) -> bool:
        """As :meth:`ClaimedFolder.claim`, without what a killed process was writing."""
        for home in (self.path, self.battery, *self.path.glob(f"{layout.POLICIES}/*")):
            sweep(home)
        return super().claim(inputs)


def holds_finished(recipe: Recipe, inputs: Mapping[str, str], policies: Sequence[str]) -> bool:
    """Whether the run folder of ``recipe`` holds a bundle of every policy, from these settings and ``inputs``.
    ``inputs`` may leave out what cannot be had without loading the base."""
    run = RunFolder(recipe, writes=False)
    try:
        claim = read_claim(run.path, run.kind)
    except (RunError, OSError):
        return False
    if claim is None:
        return False
    asked = Claim(run.kind, plain(run.fixed_settings()), {**claim.inputs, **inputs})
    return not claim.changed(asked) and all((run.battery / name).exists() for name in ("battery.json", *policies))
