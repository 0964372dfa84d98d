"""What Hydra is given, checked before it composes, and what it says of the rest."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from alora.config.convert import schema_types, unknown_key_message
from alora.config.schema import OPEN_DICTIONARIES
from alora.errors import ConfigError, first_line

_OPEN = tuple(f"{name}." for name in OPEN_DICTIONARIES)


def require_known(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Refuse an override of a key or group that is not there, and a removal, before Hydra sees them.

    Args:
        overrides: of the command line.
        folders: where groups lie.

    Raises:
        ConfigError: with one line per problem.
    """
    given = OverridesParser.create().parse_overrides(list(overrides))
    paths = [path for item in given if item.key_or_group == "hydra.searchpath" for path in cast("list", item.value())]
    folders = [*folders, *(Path(str(path).removeprefix("file://")) for path in paths)]
    # An open dictionary may be removed to be made anew, as alora.config.arguments does; a section may not.
    made = {item.key_or_group.rpartition(".")[0] for item in given if item.is_force_add()}
    anew = made.intersection(OPEN_DICTIONARIES)
    judged = [item for item in given if not (item.is_delete() and item.key_or_group in anew)]
    problems = [problem for item in judged if (problem := _about_override(item, folders)) is not None]
    if problems:
        raise ConfigError("\n".join(problems))


def _about_override(item: Override, folders: Sequence[Path]) -> str | None:
    key, known = item.key_or_group, schema_types()
    if not key:
        return f"{item.input_line!r} sets nothing; write key=value"
    if key.partition(".")[0] == "hydra" or "/" in key or item.package is not None:
        return None  # Hydra's own settings, and groups as only Hydra writes them
    group = any((folder / key).is_dir() for folder in folders)
    if item.is_delete() and key in known:
        if is_dataclass(known[key]):
            return f"{item.input_line}: a section cannot be removed; leave it out, or set values below it"
        remedy = f"{key}=null" if known[key] is Any or type(None) in get_args(known[key]) else f"{key}=VALUE"
        return f"{key} cannot be removed; give it a value: {remedy}"
    if not (group or key in known or key.startswith(_OPEN)):
        return unknown_key_message(key)
    if item.is_delete() or item.is_sweep_override() or not (group and key in {*known, "recipe"}):
        return None
    value = item.value()
    if all(isinstance(name, str) for name in (value if isinstance(value, list) else [value])):
        return None
    return (
        f"{item.input_line}: {key} takes the name of one of its options ({key}=NAME); leave it out, or set values "
        "below it"
    )


def explain(error: BaseException) -> str:
    """One message for an exception of Hydra: an option that is not there, or an override that cannot be read."""
    override, missing = getattr(error, "override", None), getattr(error, "missing_cfg_file", None)
    if missing:
        return _missing_option(str(missing), list(getattr(error, "options", None) or []), str(error))
    if isinstance(override, str):
        if override.lstrip("+").startswith(OPEN_DICTIONARIES):
            return f"{override}: not {{KEY: VALUE, ...}} of plain words, as Hydra reads it; put it into a recipe file"
        return f"{override}: not key=value as Hydra reads it ({first_line(error)}); quote it: 'key=\"value\"'"
    return "\n".join(str(item).strip() for item in (error, error.__cause__) if item is not None and str(item).strip())


def _missing_option(missing: str, options: list[str], text: str) -> str:
    name = missing.removesuffix(".yaml")
    if name.startswith("base/") and re.search(r"^[.~]|/", own := name.removeprefix("base/")):
        return f"base={own}: there is no such option; a model from the hub or a folder is base.source={own}"
    group, _, option = name.rpartition("/")
    if group == "hydra/launcher":
        return (
            f"{group}={option} is not installed; alora-toolkit[launchers] brings hydra-joblib-launcher, "
            "hydra-submitit-launcher and hydra-ray-launcher"
        )
    if (group, option) == ("hydra/sweeper", "optuna"):
        return f"{group}={option} is not installed; hydra-optuna-sweeper brings it"
    if not options:
        return f"there is no config '{name}' in the search path (see --info searchpath)\n{text.splitlines()[0]}"
    close = difflib.get_close_matches(option, options, n=1)
    meant = f"did you mean {group}={close[0]}? " if close else ""
    return f"{group}={option}: there is no such option; {meant}there are: {', '.join(sorted(options))}"
