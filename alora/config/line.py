"""The settings on a command line, in Hydra's grammar: options of groups, and values by key."""

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from alora.config.arguments import ALIASES, Arguments, quoted, unquoted
from alora.config.fill import TYPES, fill, fresh, nested, unknown_key_message
from alora.config.option_files import Folders
from alora.config.paths import configs_folder
from alora.config.schema import OPEN_DICTIONARIES
from alora.errors import ConfigError

HYDRA_ERRORS = (HydraException, OmegaConfBaseException)
_BROUGHT = {
    "launcher": "alora-toolkit[launchers] brings joblib, submitit and ray",
    "sweeper": "hydra-optuna-sweeper brings optuna",
}
_MAPPING = re.compile(rf"\+*({'|'.join(map(re.escape, OPEN_DICTIONARIES))})=(\s*\{{.*)", re.DOTALL)


@dataclass
class CommandLine:
    """``options`` by group and package; ``values`` in the order of the line; a problem for what names nothing."""

    options: dict[tuple[str, str | None], list[str]] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)  # entries of open dictionaries
    problems: list[str] = field(default_factory=list)


def is_of_hydra(override: str) -> bool:
    """Whether an override is about Hydra itself, which runs sweeps."""
    return re.match(r"[+~]*hydra[./]", override) is not None


def folders_of(arguments: Arguments) -> Folders:
    """alora's own option files come first, as in Hydra's search path."""
    given = [item for item in arguments.overrides if re.match(r"\+*hydra\.searchpath=", item)]
    paths = [str(path) for item in parsed(given) for path in cast("list[Any]", item.value())]
    more = [arguments.cwd / path.removeprefix("file://") for path in paths]
    named = [] if arguments.config_dir is None else [arguments.config_dir]
    return Folders((configs_folder(), *named, *more))


def parsed(overrides: Sequence[str], folders: Folders | None = None) -> list[Override]:
    """As Hydra reads them."""
    with explained():
        return OverridesParser.create(cast("Any", folders)).parse_overrides(list(overrides))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Hydra's errors as a ConfigError of one message."""
    try:
        yield
    except HYDRA_ERRORS as error:
        override, missing = getattr(error, "override", None), str(getattr(error, "missing_cfg_file", None) or "")
        option = missing.removesuffix(".yaml").split("/")
        message = "\n".join(str(item).strip() for item in (error, error.__cause__) if item is not None)
        if isinstance(override, str):
            message = f"{override}: not key=value as Hydra reads it; {meant(override)}"
        elif option[0] == "hydra":
            message = (
                f"{'/'.join(option[:-1])}={option[-1]} is not installed; {_BROUGHT.get(option[1], 'take another')}"
            )
        raise ConfigError(message) from error
    except RecursionError as error:
        raise ConfigError("the command line nests lists and mappings too deep; write them flatter") from error


def meant(said: str) -> str:
    """What to write in place of ``said``, for a shell; what is wrong with its value where no form of it will do."""
    key, value = re.split(r"\s*[:=]+\s*|\s+|$", unquoted(said), maxsplit=1)
    value, problems = re.sub(r",\s*(?=[],}]|$)", "", value), []
    for form, words in ((value, ""), (quoted(value), "a list is [a,b], a mapping {a: b}; for a text, ")):
        override, line = f"{ALIASES.get(key, key)}={form}", CommandLine()
        with contextlib.suppress(*HYDRA_ERRORS):
            problem = _take(OverridesParser.create().parse_override(override), line, Folders((configs_folder(),)))
            found = [problem] if problem else [text for it in line.values for _, text in fill(fresh(), it, False)]
            if not found and (line.values or not words):
                return f"{words}write {shlex.quote(override)}"
            problems += found
    return next(iter(problems), unknown_key_message(said.partition("=")[0]))


def read_line(overrides: Sequence[str], folders: Folders) -> CommandLine:
    line = CommandLine()
    for override in (item for item in overrides if not is_of_hydra(item)):
        mapping = _MAPPING.fullmatch(override)
        entries = _entries(mapping[2]) if mapping else None
        if mapping and entries is not None:
            line.values.append(nested(mapping[1], entries))
        else:
            (item,) = parsed([override])
            line.problems += filter(None, [_take(item, line, folders)])
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


def _entries(text: str) -> dict[str, str] | None:
    """``{a: x, "1": y}`` as text to text, which Hydra's grammar does not have; None for anything else."""
    try:
        entries = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    plain = isinstance(entries, dict) and all(isinstance(item, str) and item for item in (*entries, *entries.values()))
    return entries if plain else None


def _take(item: Override, line: CommandLine, folders: Folders) -> str | None:
    """Add an override to ``line``; what is wrong with one that names nothing."""
    key, said = item.key_or_group, item.input_line
    if not key:
        return f"{said!r} sets nothing; write key=value"
    if item.is_sweep_override():
        return (
            f"{said}: several values are a sweep, which -m runs; a list is [a,b], a text with commas 'a,b', and a "
            "number has a decimal point"
        )
    value = None if item.is_delete() else item.value()
    opened = next((name for name in OPEN_DICTIONARIES if key.startswith(f"{name}.")), None)
    if folders.has(key) and not isinstance(value, Mapping) and not (item.is_delete() and key in TYPES):
        names = value if isinstance(value, list) else [value]
        if not (item.is_delete() or all(isinstance(name, str) for name in names)):
            return f"{said}: {key} takes the name of one of its options; leave it out, or set values below it"
        line.options[key, item.package] = [] if item.is_delete() else [str(name) for name in names]
    elif not item.is_delete():
        line.values.append(nested(key, value))
    elif opened is not None:
        line.removed.append((opened, key.removeprefix(f"{opened}.")))
    else:
        return f"{key} cannot be removed; leave it out, or set it" if key in TYPES else unknown_key_message(key)
    return None
