"""What a file may set. The command line is its user's own; a recipe or a run folder may come from anyone.

So a file holds settings of the schema, references to them (``${name}``) and the size of a launcher's jobs. What runs
code, sends a key somewhere or reads the environment is taken from the command line alone: ``in_files`` in the schema.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf._utils import get_yaml_loader

from alora.config.schema import Recipe
from alora.config.setting import settings_of
from alora.errors import AloraError, ConfigError
from alora.reading import LARGEST_YAML, read_yaml
from alora.typed import leaves

# Setting → the values that any file may give it, the schema's own first.
COMMAND_LINE_ONLY = {key: limits.in_files for key, _, limits in settings_of(Recipe) if limits.in_files is not None}
_LAUNCHER = re.compile(
    r"hydra\.launcher\.(n_jobs|timeout_min|nodes|cpus_per_task|gpus_per_node|tasks_per_node|mem_gb|partition|qos|account"
    r"|constraint|gres|signal_delay_s|max_num_timeout|array_parallelism)"
)
_PLAIN = re.compile(r"[\w.:|&,-]*")
_REFERENCE = re.compile(r"\$\{(\w[\w.]*)\}")
# The date and the number of a job tell nothing of the machine.
_HARMLESS = re.compile(r"\$\{(?:\w[\w.]*|now:[\w%:./ -]*|hydra:job\.(?:num|id|name))\}")
_FROM_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")
_SHOWN = 30  # letters of a value that any message shows: it cuts longer ones
_OPENED = re.compile(r"(?<!\\)(?:\\\\)*\$\{")  # an odd number of backslashes makes it text


def read_settings(path: Path, refusal: type[AloraError] = ConfigError, remedy: str = "give a YAML file") -> Any:
    """The plain value in a YAML file, as OmegaConf reads YAML."""
    values = read_yaml(path, refusal, remedy, get_yaml_loader())
    defaults = values.get("defaults", []) if isinstance(values, Mapping) else []
    for item in defaults if isinstance(defaults, list) else [defaults]:
        if not isinstance(defaults, list) or not isinstance(item, str | Mapping):
            raise refusal(f"{path}: defaults is {str(defaults)[:60]}; list names such as base: smollm2")
        if "${" in str(item) or ".." in re.split(r"[^\w.-]+", str(item)):
            raise refusal(f"{path}: defaults names {str(item)[:60]}; name options of alora, without '${{' and '..'")
    return values


def forget_command_line(values: dict[str, Any]) -> None:
    """Reset in a recipe's plain values what only a command line may say: a run folder neither keeps nor gives it."""
    for key, allowed in COMMAND_LINE_ONLY.items():
        section, _, name = key.rpartition(".")
        given = values.get(section) if section else values
        if isinstance(given, dict) and given.get(name) not in allowed:
            given[name] = allowed[0]


def require_settings_alone(values: Any, where: str) -> None:
    """ConfigError when ``values``, a config from its root as the file ``where`` gives it, are more than settings."""
    problems = []
    for key, value in leaves_of(values):
        if key in COMMAND_LINE_ONLY and value not in COMMAND_LINE_ONLY[key]:
            problems.append(f"{key} is taken from the command line alone; remove it here, and give {key}=... there")
        elif key.partition(".")[0] == "hydra" and not (_LAUNCHER.fullmatch(key) and _PLAIN.fullmatch(str(value))):
            problems.append(
                f"{key}: a file may set the size of a launcher's jobs and no more of Hydra; give it as key=value"
            )
        elif isinstance(value, str) and _OPENED.search(_HARMLESS.sub("_", value)):
            problems.append(f"{key}: a file refers to settings alone, as ${{name}}; give {key}=... on the command line")
    if problems:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in dict.fromkeys(problems[:10])))


def as_written(message: str, values: Any) -> str:
    """``message`` without the values that ``values``, settings before their references are followed, take from the
    environment: a line with one says what the setting refers to instead."""
    taken = {}
    for key, text in leaves_of(values):
        for name in _FROM_ENVIRONMENT.findall(text) if isinstance(text, str) else ():
            if secret := os.environ.get(name):
                taken[key] = (text, {part[:_SHOWN] for part in (secret, repr(secret)[1:-1])})
    lines = message.splitlines()
    for at, line in enumerate(lines):
        for key, (text, parts) in taken.items():
            # A short value may be a part of any word.
            if any(part in line if len(part) > 3 else re.search(rf"\b{re.escape(part)}\b", line) for part in parts):
                lines[at] = f"{key}={text}: what it refers to cannot be used here; look at its value and type"
    return "\n".join(lines)


def require_bounded(values: Any) -> None:
    """ConfigError when the texts of a config are larger than any YAML once their references are followed."""
    known: dict[str, int] = {}

    def size(item: Any) -> int:
        return sum(size_of(text) for _, text in leaves_of(item) if isinstance(text, str))

    def size_of(text: str) -> int:
        if text not in known:
            known[text] = 0  # a circle, which OmegaConf names
            known[text] = len(text) + sum(size(value_at(values, key)) for key in _REFERENCE.findall(text))
            if known[text] > LARGEST_YAML:
                raise ConfigError(f"the references in {text[:60]!r} make it too large; write out what is meant")
        return known[text]

    if size(values) > LARGEST_YAML:
        raise ConfigError("references make these settings too large; write out what is meant")


def leaves_of(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below ``values`` with its dotted key; a list comes before its items, which have its key."""
    for name, value in leaves(values, key):
        yield name, value
        for item in value if isinstance(value, list) else []:
            yield from leaves_of(item, name)


def value_at(values: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(values, list):
            values = dict(enumerate(values)).get(int(part)) if part.isdecimal() else None
        else:
            values = values.get(part) if isinstance(values, Mapping) else None
    return values
