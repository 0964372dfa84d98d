"""Plain values into the typed schema, setting by setting: each wrong one is named, and of a key that is not there the
one that was probably meant."""

import copy
import difflib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.schema import ALL_LINEAR, OPEN_DICTIONARIES, Recipe
from alora.config.setting import settings_of
from alora.errors import ConfigError, first_line

Keys = tuple[Any, ...]  # the path of a value: names of mappings, indices of lists
# Setting → the values that a file may give it, the schema's own first: what runs code, sends a key somewhere or asks
# another machine is for the command line.
COMMAND_LINE_ONLY = {key: limits.in_files for key, _, limits in settings_of(Recipe) if limits.in_files is not None}
TYPES: dict[str, Any] = {key: kind for key, kind, _ in settings_of(Recipe)}
# What is meant by a name that several sections have, or that other libraries use.
_MEANT = {
    "seed": "training.seed",
    "rank": "adapter.rank",
    "r": "adapter.rank",
    "lora_alpha": "adapter.alpha",
    "target_modules": "adapter.targets",
    "model": "base.source",
    "model_name_or_path": "base.source",
    "lr": "training.learning_rate",
    "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_size",
    "output_dir": "run_dir",
    "report_to": "tracking.kind",
}

_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def fresh() -> DictConfig:
    """The schema's defaults, to be filled."""
    return copy.deepcopy(_schema())


@functools.cache
def _schema() -> DictConfig:
    return OmegaConf.structured(Recipe)


def fill(recipe: DictConfig, values: Mapping[Any, Any], in_file: bool, above: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Set ``values``; the path of each that cannot be, and what is wrong with it. Open dictionaries are joined."""
    for name, value in values.items():
        path = (*above, name)
        key = ".".join(map(str, path))
        if not isinstance(name, str):
            yield (
                path,
                f"the key is read as {json.dumps(name)}, and settings have names; put it in quotes, or leave it out",
            )
            continue
        kind = None if "." in str(name) else TYPES.get(key)
        if kind is None:
            while isinstance(value, Mapping) and value:  # the whole key, as it was typed
                name, value = next(iter(value.items()))
                key = f"{key}.{name}"
            yield path, unknown_key_message(key)
        elif is_dataclass(kind):
            if isinstance(value, Mapping):
                yield from fill(recipe, value, in_file, path)
            else:
                first = next(name for name in TYPES if name.startswith(f"{key}."))
                yield path, f"{key} is {str(value)[:200]}, but it is a section; set keys below it, such as {first}"
        elif in_file and key in COMMAND_LINE_ONLY and value not in COMMAND_LINE_ONLY[key]:
            yield path, f"{key} is taken from the command line alone; remove it here, and give {key}=... there"
        else:
            value = [ALL_LINEAR] if (key, value) == ("adapter.targets", ALL_LINEAR) else value
            # The first label is the positive one: joined to a recipe's, the command line's would keep its order.
            anew = key == "policy.labels" and not in_file and isinstance(value, Mapping) and len(value) > 1
            try:
                OmegaConf.update(recipe, key, value, merge=key in OPEN_DICTIONARIES and not anew)
            except (OmegaConfBaseException, OverflowError):  # an int that no float holds
                yield path, _refusal(key, kind, value)


def resolved(recipe: DictConfig) -> Recipe:
    """The recipe with its references followed."""
    try:
        found = OmegaConf.to_object(recipe)
    except OmegaConfBaseException:
        raise ConfigError("\n".join(_broken_references(recipe))) from None
    assert isinstance(found, Recipe)
    return found


def _broken_references(recipe: DictConfig) -> Iterator[str]:
    for key, kind in TYPES.items():
        try:
            value = None if is_dataclass(kind) else OmegaConf.select(recipe, key)
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            leads = "to itself" if "ecursi" in str(error) else f"nowhere ({first_line(error)})"
            yield f"{key} refers {leads}; give it a value, or refer to another setting as ${{name}}"


def nested(key: str, value: Any) -> dict[str, Any]:
    """``value`` below its sections; what follows an open dictionary is a key of the user's, dots and all."""
    opened = next((name for name in OPEN_DICTIONARIES if key.startswith(f"{name}.")), "")
    parts = [*opened.split("."), key.removeprefix(f"{opened}.")] if opened else key.split(".")
    for name in reversed(parts):
        value = {name: value}
    return value


def keys_of(values: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """The settings that ``values`` set; an open dictionary is one."""
    for name, value in values.items():
        key = f"{above}.{name}" if above else str(name)
        if is_dataclass(TYPES.get(key)) and isinstance(value, Mapping):
            yield from keys_of(value, key)
        else:
            yield key


def _refusal(key: str, kind: Any, value: Any) -> str:
    origin, inner, shown = get_origin(kind), get_args(kind), repr(value)[:200]
    if value is None:
        remedy = f"{key}={{}} adds nothing to it" if origin is dict else "give it a value"
        return f"{key} cannot be null; leave it out, or {remedy}"
    if origin is dict:
        if isinstance(value, Mapping) and (odd := [name for name in value if not isinstance(name, str)]):
            meant = {True: "yes", False: "no"}[odd[0]] if isinstance(odd[0], bool) else odd[0]
            kind_of_key = type(odd[0]).__name__
            return f'{key}: the key {odd[0]} is read as {kind_of_key}, and keys are text here; write {{"{meant}": ...}}'
        return f"{key} is {shown}; it takes {{KEY: VALUE, ...}}, each VALUE {_WORDS[inner[1].__name__]}"
    if origin is list:
        return f"{key} is {shown}; it takes [A, B, ...], each {_WORDS[inner[0].__name__]}"
    plain = next(item for item in inner or (kind,) if item is not type(None))
    return f"{key} is {shown}; it must be {_WORDS[plain.__name__]}" + (", or null" if type(None) in inner else "")


def nearest_key(key: str) -> str | None:
    """The key of the schema that was probably meant, or None."""
    name = key.rpartition(".")[2]
    names = {known.rpartition(".")[2]: known for known in TYPES} | {known: known for known in TYPES}
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.75)
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return _MEANT.get(name) or (names[close[0]] if close else None)


def unknown_key_message(key: str) -> str:
    meant = nearest_key(key)
    return f"unknown key '{key}': {f'did you mean {meant!r}?' if meant and meant != key else '--help lists every key'}"
