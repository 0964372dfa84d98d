"""Say which key is wrong and which one was probably meant."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.elsewhere import advice
from alora.config.schema import OPEN_DICTIONARIES, Recipe
from alora.config.setting import settings_of

_OVERRIDDEN = re.compile(r"Could not (?:override|delete) '(?P<key>[^'@=]+)")
_NOT_A_SECTION = re.compile(r"(?P<kind>\w+) is not a subclass of (?P<section>\w+Settings)\. value: (?P<value>.*)")
_NOT_THERE = re.compile(r"Could not delete from config\. '(?P<key>[^']+)' does not exist")
_NO_TEXT_KEY = re.compile(r"Key (?P<name>.+) \((?P<kind>\w+)\) is incompatible with \(str\)")
_NO_DELETION = "does not support deletion"
_UNKNOWN = re.compile(r"Key '[^']*' (?:is )?not in|No match in the defaults list")


def schema_types() -> dict[str, Any]:
    """Every dotted key of the schema with its type, sections included."""
    return {key: kind for key, kind, _ in settings_of(Recipe)}


def unknown_keys(values: Mapping[str, Any], section: type = Recipe, prefix: str = "") -> list[str]:
    """Dotted keys of ``values`` that the schema does not have."""
    hints = get_type_hints(section)
    found = []
    for key, value in values.items():
        kind = hints.get(str(key))
        if kind is None:
            found.append(f"{prefix}{key}")
        elif isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
            found += unknown_keys(value, kind, f"{prefix}{key}.")
    return found


def nearest_key(key: str) -> str | None:
    """The key of the schema that was probably meant, or None."""
    known = list(schema_types())
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    last = key.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    if same_name:
        return max(same_name, key=lambda name: difflib.SequenceMatcher(None, name, key).ratio())
    leaves = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(last, leaves, n=1, cutoff=0.7)
    return leaves[close[0]] if close else None


def unknown_key_message(key: str) -> str:
    """One sentence on a key that does not exist: a slip, or a setting of another library."""
    if key == "recipe":
        return "a recipe's values came out under the key 'recipe'; let its file begin with '# @package _global_'"
    if key.startswith(tuple(f"{name}." for name in OPEN_DICTIONARIES)) or key in schema_types():
        return f"'{key}' is not there yet; add it with ++{key}=VALUE"
    if known_elsewhere := advice(key):
        return known_elsewhere
    meant = nearest_key(key)
    remedy = f"did you mean '{meant}'?" if meant and meant != key else "--help lists every key"
    return f"unknown key '{key}': {remedy}"


def explain(error: BaseException) -> str:
    """One message for an exception of Hydra or OmegaConf, recognised by its attributes and text.

    Args:
        error: raised while the config was composed; its causes are read too.
    """
    chain = list(_causes(error))
    for item in chain:
        missing = getattr(item, "missing_cfg_file", None)
        if missing:
            return _missing_option(str(missing), list(getattr(item, "options", None) or []), str(item))
        if not_there := _NOT_THERE.search(str(item)):
            known = _refused_value(not_there["key"], _NO_DELETION) if not_there["key"] in schema_types() else None
            return known or unknown_key_message(not_there["key"])
    overridden = next((match["key"] for item in chain if (match := _OVERRIDDEN.search(str(item)))), None)
    for item in reversed(chain):
        full_key = overridden or getattr(item, "full_key", None)
        if full_key and _UNKNOWN.search(str(item)):
            return _about(chain, unknown_key_message(full_key))
        if full_key and "could not be converted" in str(item):
            return _about(chain, f"{full_key}: {_first_line(item)}")
        if full_key and (refused := _refused_value(full_key, _first_line(item))):
            return _about(chain, refused)
        section = _NOT_A_SECTION.search(str(item))
        if section:
            key = _key_of_section(section["section"])
            return _about(chain, f"{key} is {section['value']}, but it is a section; write its keys below it")
    override = getattr(chain[0], "override", None)
    if isinstance(override, str):
        if override.lstrip("+").startswith(OPEN_DICTIONARIES):
            return f"{override}: not {{KEY: VALUE, ...}} of plain words, as Hydra reads it; put it into a recipe file"
        return f"{override}: not key=value as Hydra reads it ({_first_line(chain[0])}); quote it: 'key=\"value\"'"
    return str(error).strip() or type(error).__name__


def broken_reference(settings: Any) -> str | None:
    """What is wrong with the first setting whose interpolation leads nowhere; None when all can be followed."""
    for key, kind in schema_types().items():
        if isinstance(kind, type) and is_dataclass(kind):
            continue
        try:
            value = OmegaConf.select(settings, key)
            if OmegaConf.is_config(value):
                OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException as error:
            return f"{key}: {_first_line(error)}; give it a value, or refer to another setting as ${{name}}"
    return None


def _refused_value(key: str, text: str) -> str | None:
    """What to do about a value or a deletion that the schema refuses; None for what is told elsewhere."""
    optional = type(None) in get_args(schema_types().get(key))
    if _NO_DELETION in text:
        remedy = f"remove a key of it, ~{key}.KEY" if key in OPEN_DICTIONARIES else f"give it a value: {key}=VALUE"
        return f"{key} cannot be removed; " + (f"use {key}=null" if optional else remedy)
    if "is not Optional" in text:
        remedy = f"{key}={{}} adds nothing to it" if key in OPEN_DICTIONARIES else "give it a value"
        return f"{key} cannot be null; leave it out, or {remedy}"
    if no_text := _NO_TEXT_KEY.search(text):
        section = key.removesuffix(f".{no_text['name']}")
        return (
            f"{section}: the key {no_text['name']} is read as {no_text['kind']}, and keys are text here; put it in "
            f'quotes, {{"{no_text["name"]}": ...}}, in a recipe file if the command line does not take it'
        )
    if key in OPEN_DICTIONARIES:
        return f"{key}: {text}; it takes {{KEY: VALUE, ...}}"
    return f"{key}: {text}" if "is not a valid" in text or "Cannot assign" in text else None


def _key_of_section(type_name: str) -> str:
    return next(
        (key for key, kind in schema_types().items() if getattr(kind, "__name__", None) == type_name), type_name
    )


def _about(chain: list[BaseException], message: str) -> str:
    """Add the file that holds the mistake, where Hydra names one."""
    for item in chain:
        match = re.match(r"In '(?P<config>[^']+)'", str(item))
        if match and match["config"] not in ("schema", "config"):
            return f"{match['config']}: {message}"
    return message


def _missing_option(missing: str, options: list[str], text: str) -> str:
    name = missing.removesuffix(".yaml")
    group, _, option = name.rpartition("/")
    if not options:
        return f"there is no config '{name}' in the search path (see --info searchpath)\n{text.splitlines()[0]}"
    close = difflib.get_close_matches(option, options, n=1)
    meant = f"did you mean {group}={close[0]}? " if close else ""
    return f"{group}={option}: there is no such option; {meant}There are: {', '.join(sorted(options))}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
