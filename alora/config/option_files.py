"""A recipe or an option file as plain data: a YAML mapping of settings.

A group's option stands by its name (``base: qwen3_4b``), the recipe to start from as ``recipe: NAME``. Two idioms of
Hydra mean the same: ``defaults: [override /base: qwen3_4b]`` and ``# @package _global_``; OmegaConf follows ``${key}``
to another setting. Nothing else of Hydra's language stands in a file, which may come from anyone: see ``_foreign``.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from alora.config.fill import TYPES, Keys, nested
from alora.errors import AloraError, ConfigError
from alora.text import read_yaml

RECIPE = "recipe"  # the group of recipes
_OF_PRIMARY = ("schema", "groups", "_self_")  # in the defaults of a saved run.yaml; they mean nothing
_GROUP = re.compile(r"^(?:override +)?/?(?=\w+$)")  # before a group's name
_OPTION = re.compile(r"[\w-]+(?:[./][\w-]+)*")  # below its group's folder
_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")
_REFERENCE = re.compile(r"\$\{\w+(?:\.\w+)*\}")
_OPENED = re.compile(r"(?<!\\)(?:\\\\)*\$\{")  # an odd number of backslashes makes it text


@dataclass(frozen=True)
class SettingsFile:
    """``values`` by section and key; ``options``: the option of each group that it chooses by name."""

    path: Path
    values: dict[str, Any]
    options: dict[str, str]

    def where(self, keys: Keys) -> str:
        return f"{self.path}:{_line(self.path, keys)}"


@dataclass(frozen=True)
class Folders:
    """Where option files lie, group by group; the first that has one counts."""

    paths: tuple[Path, ...]

    def has(self, group: str) -> bool:
        is_setting = group in TYPES and not is_dataclass(TYPES[group])  # whatever folder has its name
        return not is_setting and any((path / group).is_dir() for path in self.paths)

    def options(self, group: str) -> list[str]:
        return sorted({file.stem for path in self.paths for file in (path / group).glob("*.yaml")})

    def get_group_options(self, group: str, **_: Any) -> list[str]:
        """As Hydra's parser asks for them, which reads ``glob(*)``."""
        return self.options(group)

    def find(self, group: str, option: str) -> Path:
        """ConfigError when there is no such option, with those that there are."""
        files = [path / group / f"{option}.yaml" for path in self.paths if _OPTION.fullmatch(option)]
        if found := [file for file in files if file.is_file()]:
            return found[0]
        if group == "base" and "/" in option:
            raise ConfigError(f"base={option}: there is no such option; a model of the hub is base.source={option}")
        options = self.options(group)
        close = difflib.get_close_matches(option, options, n=1)
        meant = f"did you mean {group}={close[0]}? " if close else ""
        raise ConfigError(f"{group}={option}: there is no such option; {meant}there are: {', '.join(options)}")

    def read_option(self, group: str, option: str, package: str | None = None) -> SettingsFile:
        """An option's file, its values from the root of the settings, below ``package`` or where its group is."""
        file = self.read(self.find(group, option))
        if package is None and (group == RECIPE or "_global_" in _packages(file.path)):
            return file
        return SettingsFile(file.path, nested((package or group).replace("/", "."), file.values), {})

    def read(self, path: Path) -> SettingsFile:
        """Raises ConfigError when it is no YAML mapping, or more than settings."""
        values = read_plain(path)
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: a recipe is a YAML mapping of settings (name, policy, data, ...)")
        options: dict[str, str] = {}
        for entry in values.pop("defaults", ()):
            if isinstance(entry, dict):
                options |= {_GROUP.sub("", name): option for name, option in entry.items()}
        chosen = [name for name, value in values.items() if isinstance(value, str) and self.has(str(name))]
        return SettingsFile(path, values, options | {name: values.pop(name) for name in chosen})

    def lineage(self, file: SettingsFile) -> list[SettingsFile]:
        """``file`` after the recipes that it starts from."""
        files = [file]
        while parent := files[0].options.pop(RECIPE, None):
            path = self.find(RECIPE, parent)
            if path in [known.path for known in files]:
                raise ConfigError(f"{files[0].path}: the recipe includes itself; take 'recipe: {parent}' out")
            files.insert(0, self.read(path))
        return files


def read_plain(path: Path, refusal: type[AloraError] = ConfigError, remedy: str = "give a YAML file") -> Any:
    """The value in a YAML file of settings, as OmegaConf reads YAML; ``refusal`` when it cannot be read, ConfigError
    when there is more in it than settings."""
    values = read_yaml(path, refusal, remedy, get_yaml_loader())
    problems = [f"{path}:{_line(path, keys)}: {problem}" for keys, problem in _foreign(values)]
    problems += [
        f"{path}: '@package {name}' is Hydra's; write '# @package _global_', or nothing, and every key by its section"
        for name in _packages(path)
        if name != "_global_"
    ]
    if problems:
        raise ConfigError("\n".join(problems[:10]))
    return {} if values is None else values


def _foreign(values: Any) -> Iterator[tuple[Keys, str]]:
    """What Hydra would run, fetch or place elsewhere: its path, and what to write."""
    for keys, value in _leaves(values):
        key = ".".join(name for name in keys if isinstance(name, str))
        if keys[:1] == ("defaults",):
            if not _is_choice(value, keys):
                yield keys[:2], "defaults chooses options; write 'override /GROUP: OPTION', or GROUP: OPTION without it"
        elif keys[:1] == ("hydra",):
            yield keys, f"a recipe sets nothing of Hydra; give {key}=... on the command line"
        elif "_target_" in keys:
            yield keys, "_target_ calls code, and a recipe holds settings alone; remove it"
        elif isinstance(value, str) and _OPENED.search(_REFERENCE.sub("_", value)):
            yield keys, f"{key}: a file refers to settings alone, as ${{name}}; give {key}=... on the command line"


def _is_choice(value: Any, keys: Keys) -> bool:
    """Whether an entry of ``defaults`` chooses an option, or is what a saved recipe has there."""
    if len(keys) == 3 and isinstance(value, str):
        return bool(_GROUP.match(str(keys[2])) and _OPTION.fullmatch(value))
    return len(keys) == 2 and isinstance(keys[1], int) and value in _OF_PRIMARY


def _leaves(value: Any, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    items = list(value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ())
    if not items:
        yield above, value
    for name, inner in items:
        yield from _leaves(inner, (*above, name))


def _packages(path: Path) -> list[str]:
    """The packages that the comments above a file's first setting name."""
    found = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        if line.strip() and not line.startswith("#"):
            break
        found += _PACKAGE.findall(line)
    return found


def _line(path: Path, keys: Keys) -> int:
    """The line of a value; the file is read again, for a message alone."""
    node, line = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=get_yaml_loader()), 1
    for key in keys:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[key]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            found = [(name, inner) for name, inner in node.value if name.value == str(key)]
            line, node = (found[0][0].start_mark.line + 1, found[0][1]) if found else (line, None)
    return line
