"""The settings on a command line, in Hydra's grammar: options of groups, and values by key."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, cast, get_args

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException

from alora.config.arguments import Arguments
from alora.config.files import Folders
from alora.config.fill import TYPES, unknown_key_message
from alora.config.paths import configs_folder
from alora.config.schema import OPEN_DICTIONARIES
from alora.errors import ConfigError, first_line

_OPEN = tuple(f"{name}." for name in OPEN_DICTIONARIES)
_MAPPING = re.compile(rf"\+*({'|'.join(map(re.escape, OPEN_DICTIONARIES))})=(\s*\{{.*)", re.DOTALL)


@dataclass
class Line:
    """``options`` by group and package, None for one that is taken out; ``values`` in the order of the line."""

    options: dict[tuple[str, str | None], list[str] | None] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)  # entries of open dictionaries


def is_of_hydra(override: str) -> bool:
    """Whether an override is about Hydra itself, which runs sweeps."""
    return re.match(r"[+~]*hydra[./]", override) is not None


def folders_of(arguments: Arguments) -> Folders:
    """alora's own option files come first, as in Hydra's search path."""
    given = [item for item in arguments.overrides if re.match(r"\+*hydra\.searchpath=", item)]
    paths = [str(path) for item in parsed(given) for path in cast("list[Any]", item.value())]
    more = [arguments.cwd / path.removeprefix("file://") for path in paths]
    named = [folder for folder in (arguments.config_path, arguments.config_dir) if folder is not None]
    return Folders((configs_folder(), *named, *more))


def parsed(overrides: Sequence[str], folders: Folders | None = None) -> list[Override]:
    """Raises ConfigError for one that Hydra cannot read."""
    try:
        return OverridesParser.create(cast("Any", folders)).parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override}: not key=value as Hydra reads it ({first_line(error)}); quote it: 'key=\"value\"'"
        ) from error
    except HydraException as error:
        raise ConfigError(str(error)) from error


def read_line(overrides: Sequence[str], folders: Folders) -> Line:
    """Raises ConfigError with a line for each override of a key, group or entry that is not there."""
    line, problems = Line(), []
    for override in overrides:
        if is_of_hydra(override):
            continue
        mapping = _MAPPING.fullmatch(override)
        if mapping and (entries := _entries(mapping[2])) is not None:
            line.values.append(nested(mapping[1], entries))
            continue
        (item,) = parsed([override])
        problem = _problem(item, folders)
        if problem is not None:
            problems.append(problem)
        else:
            _take(item, line, folders)
    if problems:
        raise ConfigError("\n".join(problems))
    return line


def apart(overrides: Sequence[str], folders: Folders) -> tuple[list[str], list[Override]]:
    """What all jobs of a sweep share, and what has several values; of a key given twice the last counts, as in a single
    run."""
    shared: list[str] = []
    varied: dict[str, Override] = {}
    for override in (item for item in overrides if not is_of_hydra(item)):
        key = override.lstrip("+").partition("=")[0]
        varied.pop(key, None)
        item = None if _MAPPING.fullmatch(override) else parsed([override], folders)[0]
        if item is not None and item.is_sweep_override():
            varied[key] = item
        else:
            shared.append(override)
    return shared, list(varied.values())


def nested(key: str, value: Any) -> dict[str, Any]:
    """``value`` below its sections; what follows an open dictionary is a key of the user's, dots and all."""
    opened = next((name for name in _OPEN if key.startswith(name)), "")
    parts = [*opened.rstrip(".").split("."), key.removeprefix(opened)] if opened else key.split(".")
    for name in reversed(parts):
        value = {name: value}
    return value


def _entries(text: str) -> dict[str, str] | None:
    """``{a: x, "1": y}`` as text to text, which Hydra's grammar does not have; None for anything else."""
    try:
        entries = yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text}: not {{KEY: VALUE, ...}}; put it into a recipe file") from error
    plain = isinstance(entries, dict) and all(isinstance(item, str) and item for item in (*entries, *entries.values()))
    return entries if plain else None


def _take(item: Override, line: Line, folders: Folders) -> None:
    key, value = item.key_or_group, None if item.is_delete() else item.value()
    if _names_options(item, folders):
        line.options[key, item.package] = value if isinstance(value, list) else [value] if value else None
    elif item.is_delete():
        name = next(name for name in _OPEN if key.startswith(name))
        line.removed.append((name.rstrip("."), key.removeprefix(name)))
    else:
        line.values.append(nested(key, value))


def _names_options(item: Override, folders: Folders) -> bool:
    return folders.has(item.key_or_group) and (item.is_delete() or not isinstance(item.value(), Mapping))


def _problem(item: Override, folders: Folders) -> str | None:
    key, said = item.key_or_group, item.input_line
    if not key:
        return f"{said!r} sets nothing; write key=value"
    if item.is_sweep_override():
        return f"{said}: several values are a sweep, which -m runs; a list is [a,b]; quote a text with commas: 'a,b'"
    if item.is_delete() and key in TYPES:
        if is_dataclass(TYPES[key]):
            return f"{said}: a section cannot be removed; leave it out, or set values below it"
        nullable = TYPES[key] is Any or type(None) in get_args(TYPES[key])
        return f"{key} cannot be removed; give it a value: {key}={'null' if nullable else 'VALUE'}"
    if _names_options(item, folders):
        value = item.value() if not item.is_delete() else ""
        if all(isinstance(name, str) for name in (value if isinstance(value, list) else [value])):
            return None
        return f"{said}: {key} takes the name of one of its options ({key}=NAME); leave it out, or set values below it"
    if not (key in TYPES or key.startswith(_OPEN)):
        return unknown_key_message(key)
    return None
