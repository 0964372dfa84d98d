"""What the command line says before Hydra reads it: positional arguments, aliases and recipe files.

Pure text to text. Hydra knows ``key=value`` and its own flags only; the rest of what a user may type is turned into
that form here.
"""

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from alora.config.paths import expanded, recipes_folder
from alora.config.schema import OF_ARTIFACT
from alora.errors import ConfigError

POSITIONAL = {"new": "name", "score": "conversation", "bench": "bench.workload"}
ALIASES = {"bundle": "artifact", "battery": "artifact", "verdicts": "logs.verdicts", "engine": "scorer"}
OF_LOGS = ("score", "report", "label")
LOCAL_RECIPE = "recipe.yaml"
# Those that go by what an artifact was trained with do not take the recipe that happens to lie there.
_WITHOUT_RECIPE = ("new", "doctor", "bench", "report", "label", "plan", *OF_ARTIFACT)

# Hydra's flags by their short names (1.3); those whose value is the next argument, and those where it may be.
_LONG = {"-cd": "--config-dir", "-c": "--cfg", "-p": "--package", "-m": "--multirun", "-r": "--run", "-i": "--info",
         "-h": "--help"}  # fmt: skip
_WITH_VALUE = ("--config-dir", "--cfg", "--package")
_VALUES = {"--help": ("all",), "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")}
COMPOSING = {"--config-dir", "--multirun", "--run"}
# No --experimental-rerun, which unpickles its file, and no --config-name: recipe=FILE.
FLAGS = (*_LONG.values(), "--resolve", "--hydra-help", "--version")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2})(?P<key>[^=+~]+)=(?P<value>.*)", re.DOTALL)
_SLIP = re.compile(r"([\w.]+)([\s:=]+)\S.*", re.DOTALL)
_NAMES = re.compile(r"[\w .-]+(,[\w .-]+)+")


@dataclass(frozen=True)
class Arguments:
    """One command line. ``overrides`` are in Hydra's grammar; ``recipe_files`` are the files behind ``recipe=``;
    ``options`` are Hydra's flags by their long names, with their values.

    ``local`` says that nobody asked for a recipe, and the one in the working folder is taken; ``unread`` that it is
    not, although it lies there.
    """

    verb: str
    overrides: tuple[str, ...]
    recipe_files: tuple[Path, ...] = ()
    local: bool = False
    unread: bool = False
    cwd: Path = Path()
    options: Mapping[str, str] = field(default_factory=dict)

    def sets(self, key: str) -> bool:
        """Whether an override sets ``key`` itself (not a key below it)."""
        return any((match := _OVERRIDE.fullmatch(item)) and match["key"] == key for item in self.overrides)

    @property
    def shows(self) -> bool:
        """Whether there are flags besides those that say what is composed: Hydra prints something, or refuses them."""
        return bool(self.options.keys() - COMPOSING)

    @property
    def config_dir(self) -> Path | None:
        return self.cwd / self.options["--config-dir"] if "--config-dir" in self.options else None

    @property
    def roots(self) -> list[Path]:
        """Where relative paths are looked up, in order; absolute, because a sweep's jobs may run elsewhere."""
        found = [self.cwd, *(path.parent for path in self.recipe_files)]
        if self.config_dir is not None:
            found += [self.config_dir, self.config_dir / "recipe"]
        return list(dict.fromkeys([*found, recipes_folder()]))


def read_arguments(verb: str, argv: Sequence[str], cwd: Path) -> Arguments:
    """Sort ``argv`` (what follows the verb) into flags and overrides."""
    options, overrides, positional = _split(argv)
    overrides = [_unalias(verb, item) for item in overrides]
    if positional:
        overrides = [*_positional(verb, positional, overrides, argv), *overrides]
    given = Arguments(verb, tuple(overrides), cwd=cwd, options=options)
    if given.config_dir is not None and not given.config_dir.is_dir():
        raise ConfigError(f"--config-dir {given.config_dir}: there is no such folder; give one with configs")
    elsewhere = given.config_dir is not None or given.sets("recipe")
    lies_there = not elsewhere and (cwd / LOCAL_RECIPE).is_file()
    local, unread = lies_there and verb not in _WITHOUT_RECIPE, lies_there and verb in OF_ARTIFACT
    if local:
        overrides.insert(0, f"recipe={LOCAL_RECIPE}")
    overrides, files = _name_recipe_files(overrides, cwd)
    return replace(given, overrides=tuple(overrides), recipe_files=tuple(files), local=local, unread=unread)


def other_names(verb: str, key: str) -> list[str]:
    """What else the command line of ``verb`` calls the setting ``key``."""
    names = [alias for alias, meant in ALIASES.items() if meant == key]
    return [*names, "data"] if verb in OF_LOGS and key == "conversation" else names


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    options: dict[str, str] = {}
    overrides: list[str] = []
    positional: list[str] = []
    waiting = deque(argv)
    while waiting:
        item = waiting.popleft()
        name, equals, value = item.partition("=")
        if item.startswith("-") and item != "-":
            name = _LONG.get(name, name)
            if name not in FLAGS:
                from alora.config.fill import nearest_key  # OmegaConf, which the client of a server may lack

                key = nearest_key(name.lstrip("-").replace("-", "_"))  # of another tool's habit
                after = waiting[0] if waiting and not equals and not waiting[0].startswith("-") else value
                way = f"write {key}={after}" if key else "a setting is key=value, and --hydra-help lists the flags"
                raise ConfigError(f"{item}: there is no such flag; {way}")
            if waiting and not equals and (name in _WITH_VALUE or waiting[0] in _VALUES.get(name, ())):
                value = waiting.popleft()
            options[name] = value or ("all" if name == "--info" else "")
        elif equals or item.startswith("~"):
            overrides.append(item)
        else:
            positional.append(item)
    return options, overrides, positional


def _positional(verb: str, values: list[str], overrides: list[str], argv: Sequence[str]) -> list[str]:
    key = POSITIONAL.get(verb)
    if said := _slip(values[0], argv, by_sign=key is not None):
        return [said]
    if key is None:
        a_recipe = Path(values[0]).suffix in ("", ".yaml", ".yml")
        hint = "artifact" if verb in OF_ARTIFACT else "recipe" if a_recipe else "data.train"
        raise ConfigError(f"alora {verb}: {values[0]!r} is not key=value; did you mean {hint}={values[0]}?")
    if verb == "score" and not any(item.startswith(("artifact=", "bundles=")) for item in overrides):
        if len(values) == 2:
            return [f"artifact={quoted(values[0])}", f"{key}={quoted(values[1])}"]
        if len(values) == 1 and any(item.startswith("conversation=") for item in overrides):
            return [f"artifact={quoted(values[0])}"]
    if len(values) > 1:
        raise ConfigError(f"alora {verb} takes one {key}, not {len(values)}: {' '.join(values)}")
    return [f"{key}={quoted(values[0])}"]


def _slip(word: str, argv: Sequence[str], by_sign: bool) -> str | None:
    """The setting that ``word`` is part of, with blanks or a colon, as Hydra refuses it; None where it is none."""
    from alora.config.fill import TYPES, nearest_key  # OmegaConf, which the client of a server may lack

    first = argv.index(word)
    first -= first > 0 and argv[first - 1].endswith("=")
    rest = takewhile(lambda item: not _OVERRIDE.fullmatch(item) and item[:1] != "-", argv[first + 1 :])
    found = _SLIP.fullmatch(" ".join([argv[first], *rest]).replace("= ", " = ", 1))
    known = found and (nearest_key(found[1]) if found[2].strip() else not by_sign and found[1] in TYPES)
    return found[0] if found and known else None


def _unalias(verb: str, item: str) -> str:
    match = _OVERRIDE.fullmatch(item)
    if match is None:
        return item
    if verb in OF_LOGS and match["key"] == "data":  # its rows have no other role
        return f"conversation={quoted(unquoted(match['value']))}"
    # Several names in one text, where Hydra would see a sweep; choice(a,b) is one.
    if match["key"] == "data.columns.messages" and _NAMES.fullmatch(match["value"]):
        return f"{match['key']}='{match['value']}'"
    key = ALIASES.get(match["key"], match["key"])
    if key == "policy" and unquoted(match["value"]).endswith((".yaml", ".yml")):  # and no name of a stored policy
        key = "policy.file"
    return f"{match['sign']}{key}={match['value']}"


def quoted(text: str) -> str:
    """``text`` as one value of an override: Hydra takes backslashes for escapes only before a quote, or at the end."""
    escaped = re.sub(r'(\\*)("|\Z)', lambda found: found[1] * 2 + (found[2] and '\\"'), text)
    return f'"{escaped}"'


def unquoted(value: str) -> str:
    """``value`` without the quotes around it, as Hydra takes those of other keys."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _name_recipe_files(overrides: list[str], cwd: Path) -> tuple[list[str], list[Path]]:
    """``recipe=some/file.yaml`` (also several, separated by commas) with absolute paths in quotes, and the files."""
    files: list[Path] = []

    def named(name: str) -> str:
        given = unquoted(name)
        if not given.endswith((".yaml", ".yml")):
            return name
        files.append(Path(os.path.realpath(cwd / expanded(given))))
        if not files[-1].is_file():
            raise ConfigError(f"recipe={given}: there is no file {files[-1]}; give a file, or a name like quickstart")
        return quoted(str(files[-1]))

    def with_files(item: str) -> str:
        match = _OVERRIDE.fullmatch(item)
        is_recipe = match is not None and match["key"] == "recipe"
        return f"recipe={','.join(map(named, match['value'].split(',')))}" if match and is_recipe else item

    return list(map(with_files, overrides)), files
