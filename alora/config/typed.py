"""Plain values, from a file or composed by Hydra, as the schema's types. Every wrong one is named at once."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import reduce
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.explain import unknown_key_message, unknown_keys
from alora.config.schema import Recipe
from alora.config.setting import settings_of
from alora.errors import ConfigError

_NOT_GIVEN = object()
_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def typed_recipe(values: Mapping[str, Any]) -> Recipe:
    """The recipe that ``values`` describe, on the schema's defaults.

    Raises:
        ConfigError: keys that the schema does not have, values of another type, references that lead nowhere.
    """
    recipe, problems = _filled(values)
    problems = problems or broken_references(recipe)
    if problems:
        raise ConfigError("\n".join(problems))
    result = OmegaConf.to_object(recipe)
    assert isinstance(result, Recipe)
    return result


def type_problems(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with ``values`` as settings, one line for each."""
    return _filled(values)[1]


def _filled(values: Mapping[str, Any]) -> tuple[DictConfig, list[str]]:
    recipe, problems = OmegaConf.structured(Recipe), [unknown_key_message(key) for key in unknown_keys(values)]
    no_sections: list[str] = []
    for key, kind, _ in settings_of(Recipe):
        value = _at(values, key)
        if value is _NOT_GIVEN or key.startswith(tuple(no_sections)):
            continue
        if is_dataclass(kind):
            if not isinstance(value, Mapping):
                no_sections.append(f"{key}.")
                problems.append(f"{key} is {value}, but it is a section; write its keys below it")
            continue
        try:
            OmegaConf.update(recipe, key, value, merge=False)
        except OmegaConfBaseException:
            problems.append(_refusal(key, kind, value))
    return recipe, problems


def _refusal(key: str, kind: Any, value: Any) -> str:
    inner = get_args(kind)
    if value is None:
        remedy = f"{key}={{}} adds nothing to it" if "dict" in str(kind) else "give it a value"
        return f"{key} cannot be null; leave it out, or {remedy}"
    if "dict" in str(kind):
        if isinstance(value, Mapping) and (odd := [name for name in value if not isinstance(name, str)]):
            return (
                f"{key}: the key {odd[0]} is read as {type(odd[0]).__name__}, and keys are text here; put it in "
                f'quotes, {{"{odd[0]}": ...}}, in a recipe file if the command line does not take it'
            )
        return f"{key} is {value!r}; it takes {{KEY: VALUE, ...}}, each VALUE {_WORDS[inner[1].__name__]}"
    if "list" in str(kind):
        return f"{key} is {value!r}; it takes [A, B, ...], each {_WORDS[inner[0].__name__]}"
    plain = next(item for item in inner or (kind,) if item is not type(None))
    return f"{key} is {value!r}; it must be {_WORDS[plain.__name__]}" + (", or null" if type(None) in inner else "")


def broken_references(recipe: DictConfig) -> list[str]:
    """One line for each setting whose interpolation leads nowhere."""
    problems = []
    for key, kind, _ in settings_of(Recipe):
        if is_dataclass(kind):
            continue
        try:
            value = OmegaConf.select(recipe, key)
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            reason = next(line for line in str(error).splitlines() if line.strip())
            problems.append(f"{key}: {reason}; give it a value, or refer to another setting as ${{name}}")
    return problems


def _at(values: Mapping[str, Any], key: str) -> Any:
    def below(section: Any, name: str) -> Any:
        return section.get(name, _NOT_GIVEN) if isinstance(section, Mapping) else _NOT_GIVEN

    return reduce(below, key.split("."), values)
