"""Plain values, from a file or composed by Hydra, as the schema's types.

Every wrong one is named at once, and of a key that is not there the one that was probably meant.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.elsewhere import advice
from alora.config.schema import ALL_LINEAR, Recipe
from alora.config.setting import settings_of
from alora.errors import ConfigError, first_line

_MOST = 20  # problems named at once
# What is meant by a name that several sections have, or that alora has not.
_MEANT = {"seed": "training.seed", "rank": "adapter.rank", "model": "base.source"}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def typed_recipe(values: Mapping[Any, Any]) -> Recipe:
    """The recipe that ``values`` describe, on the schema's defaults.

    Raises:
        ConfigError: keys that the schema does not have, values of another type, references that lead nowhere.
    """
    recipe = OmegaConf.structured(Recipe)
    problems = list(islice(_fill(recipe, values), _MOST)) or _broken_references(recipe)
    if problems:
        raise ConfigError("\n".join(problems))
    result = OmegaConf.to_object(recipe)
    assert isinstance(result, Recipe)
    return result


def type_problems(values: Mapping[Any, Any]) -> list[str]:
    """What is wrong with ``values`` as settings, one line for each."""
    return list(islice(_fill(OmegaConf.structured(Recipe), values), _MOST))


def _fill(recipe: DictConfig, values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Set ``values`` one by one; a line for each that cannot be."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        kind = None if "." in str(name) else schema_types().get(key)
        if kind is None:
            yield unknown_key_message(key)
        elif not is_dataclass(kind):
            value = [ALL_LINEAR] if (key, value) == ("adapter.targets", ALL_LINEAR) else value
            try:
                OmegaConf.update(recipe, key, value, merge=False)
            except (OmegaConfBaseException, OverflowError):  # an int that no float holds
                yield _refusal(key, kind, value)
        elif isinstance(value, Mapping):
            yield from _fill(recipe, value, f"{key}.")
        else:
            first = next(name for name in schema_types() if name.startswith(f"{key}."))
            yield f"{key} is {str(value)[:200]}, but it is a section; write its keys below it, such as {first}"


def _refusal(key: str, kind: Any, value: Any) -> str:
    origin, inner, shown = get_origin(kind), get_args(kind), repr(value)[:200]
    if value is None:
        remedy = f"{key}={{}} adds nothing to it" if origin is dict else "give it a value"
        return f"{key} cannot be null; leave it out, or {remedy}"
    if origin is dict:
        if isinstance(value, Mapping) and (odd := [name for name in value if not isinstance(name, str)]):
            meant = {True: "yes", False: "no"}[odd[0]] if isinstance(odd[0], bool) else odd[0]
            return (
                f"{key}: the key {odd[0]} is read as {type(odd[0]).__name__}, and keys are text here; put it in "
                f'quotes as your data has it, {{"{meant}": ...}}, in a recipe file if the command line does not take it'
            )
        return f"{key} is {shown}; it takes {{KEY: VALUE, ...}}, each VALUE {_WORDS[inner[1].__name__]}"
    if origin is list:
        return f"{key} is {shown}; it takes [A, B, ...], each {_WORDS[inner[0].__name__]}"
    plain = next(item for item in inner or (kind,) if item is not type(None))
    return f"{key} is {shown}; it must be {_WORDS[plain.__name__]}" + (", or null" if type(None) in inner else "")


def _broken_references(recipe: DictConfig) -> list[str]:
    """One line for each setting whose interpolation leads nowhere."""
    problems = []
    for key, kind in schema_types().items():
        if is_dataclass(kind):
            continue
        try:
            value = OmegaConf.select(recipe, key)
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            problems.append(f"{key}: {first_line(error)}; give it a value, or refer to another setting as ${{name}}")
    return problems


def schema_types() -> dict[str, Any]:
    """Every dotted key of the schema with its type, sections included."""
    return {key: kind for key, kind, _ in settings_of(Recipe)}


def nearest_key(key: str) -> str | None:
    """The key of the schema that was probably meant, or None."""
    known = schema_types()
    names = {name.rpartition(".")[2]: name for name in known} | {name: name for name in known}
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.75)
    close = close or difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.7)
    return _MEANT.get(key) or (names[close[0]] if close else None)


def unknown_key_message(key: str) -> str:
    """One sentence on a key that does not exist: a slip, or a setting of another library."""
    if key == "recipe":
        return "a recipe's values came out under the key 'recipe'; let its file begin with '# @package _global_'"
    if known_elsewhere := advice(key):
        return known_elsewhere
    meant = nearest_key(key)
    remedy = f"did you mean '{meant}'?" if meant and meant != key else "--help lists every key"
    return f"unknown key '{key}': {remedy}"
