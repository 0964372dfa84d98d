"""``inputs.json``: the claim of a run or a comparison, by which the same inputs resume and others are refused."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from alora.atomic import LOCK, is_part
from alora.base.fingerprint import Fingerprint
from alora.config.describe import without_effect
from alora.config.schema import AdapterSettings, BaseSettings, DataSettings, PromptSettings, Recipe
from alora.errors import RunError
from alora.received import CHANGED, DAMAGED, NOT_OURS, decode, read_record, refused
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
        return changed_settings(*({"settings": _fixed(claim), "inputs": claim.inputs} for claim in (self, now)))


def settings_of_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a recipe's settings those that what a run makes depends on, by their dotted keys."""
    values = dict(leaves(settings))
    other = {*without_effect("train", values), *(key for key in values if {key, key.partition(".")[0]} & _FREE)}
    return {key: value for key, value in values.items() if key not in other}


def _fixed(claim: Claim) -> Mapping[str, Any]:
    return settings_of_training(claim.settings) if claim.kind == RUN else claim.settings


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
