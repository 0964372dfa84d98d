"""``run.yaml``: a run's settings as a file that the next command takes as its input.

The file holds every value of the recipe but what only a command line may say, so it means the same after a default
has changed. The environment (versions, commit, command) stands above it in comments: it tells a reader how the run came
about and sets nothing on reload.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from alora.atomic import write_text
from alora.config.fill import COMMAND_LINE_ONLY, fill, fresh, resolved
from alora.config.option_files import read_plain
from alora.config.schema import Recipe
from alora.errors import ConfigError, RunError

Section = TypeVar("Section", bound=Any)  # a dataclass of alora.config.schema
_GONE = ("force",)  # settings of earlier runs that nothing which they made depends on
_HEADER = "# Run it again: alora train recipe=THIS_FILE (elsewhere: and name=ANOTHER)\n# environment:\n"


def save_recipe(recipe: Recipe, path: str | os.PathLike[str], environment: Mapping[str, str]) -> None:
    """Write ``recipe`` to ``path``, a recipe file."""
    facts = _dump(dict(environment))
    comments = "".join(f"#   {line}\n" for line in facts.splitlines())
    values = asdict(recipe)
    forget_command_line(values)
    settings = _dump({**_literal(values), "run_dir": _following(recipe)})
    write_text(path, _HEADER + comments + "\n" + settings)


class _Dumper(yaml.SafeDumper):
    """Quotes text that PyYAML writes plainly and that reads as something else.

    Line breaks that only YAML 1.1 knows would read as spaces, and ``0E0`` is a number to OmegaConf's loader alone.
    """


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    odd = any(character in text for character in "\x85\u2028\u2029") or re.match(r"[-+.\d]", text)
    style = '"' if odd else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _dump(values: dict[str, Any]) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def _literal(value: Any) -> Any:
    """Escape what OmegaConf would take for an interpolation: a recipe's values are resolved already."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, str) and "${" in value:
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    return value


def _following(recipe: Recipe) -> str:
    """The run folder, with the run's name in it as a reference: another name on reload leads to another folder.

    Above the working folder, and of a run folder that lies elsewhere, a part may have that name by chance.
    """
    folder, here = Path(recipe.run_dir), Path.cwd()
    mine = folder.relative_to(here).parts if folder.is_relative_to(here) else folder.parts[-1:]
    parts = [_literal(part) for part in folder.parts]
    if recipe.name in mine:
        parts[-1 - mine[::-1].index(recipe.name)] = "${name}"
    return str(Path(*parts))


def read_saved_recipe(path: str | os.PathLike[str]) -> Recipe:
    """What :func:`save_recipe` wrote, typed; RunError where it is not a YAML mapping, ConfigError for unknown keys."""
    file = Path(path)
    values = read_plain(file, RunError, "train again")
    if not (isinstance(values, dict) and values):
        raise RunError(f"{path}: this run's settings are not a YAML mapping; train again")
    for name in ("defaults", *_GONE):
        values.pop(name, None)
    forget_command_line(values)
    settings = fresh()
    if problems := [f"{path}: {problem}" for _, problem in fill(settings, values, in_file=True)]:
        problems.append("the run was made by another version of alora; train again or edit the file")
        raise ConfigError("\n".join(problems))
    return resolved(settings)


def forget_command_line(values: dict[str, Any]) -> None:
    """Reset in a recipe's plain values what only a command line may say: a run folder neither keeps nor gives it."""
    for key, allowed in COMMAND_LINE_ONLY.items():
        section, _, name = key.rpartition(".")
        given = values.get(section) if section else values
        if isinstance(given, dict) and given.get(name) not in allowed:
            given[name] = allowed[0]


def over(given: Section, of_run: Section, spelt: Collection[str], section: str) -> Section:
    """The command's settings of a ``section`` (its name), and its run's where the command, whose keys are ``spelt``,
    says nothing; mappings are joined."""
    unset, result = type(given)(), {}
    for name, value in vars(given).items():
        before, key = getattr(of_run, name), f"{section}.{name}"
        if is_dataclass(value):
            result[name] = over(value, before, spelt, key)
        elif isinstance(value, dict) and (value or key not in spelt):
            result[name] = {**before, **value}
        else:
            result[name] = value if key in spelt or value != getattr(unset, name) else before
    return replace(of_run, **result)
