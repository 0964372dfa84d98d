"""What the command line itself chooses, apart from the recipe under it.

A recipe's own values come after the groups, as in any Hydra experiment file. So ``base=qwen3_4b`` on top of a recipe
that spells out ``base.source`` would be ignored without a word; such a choice is caught here.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from alora.config.received import read_settings, value_at
from alora.config.schema import ColumnSettings, Recipe
from alora.reading import read_whole
from alora.typed import leaves

_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")
_NEEDS_A_VALUE = ("fpr", "recall")  # targets of the operating point
_DEEPEST = 20  # options that include others


def silenced_choices(overrides: Sequence[str], values: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    """One message for each ``group=option`` whose keys hold other values in the end.

    Args:
        overrides: the command line's, one job's.
        values: the composed config.
        folders: where group folders lie; the first that has the option counts.
    """
    given, messages = dict(item.lstrip("+").split("=", 1) for item in overrides if "=" in item), []
    for group, option in given.items():
        for key, value in option_values(group, option, folders).items():
            found = value_at(values, key)
            explicit = any(f"{key}.".startswith(f"{name}.") for name in given.keys() - {group})
            if found != value and not explicit:
                messages.append(
                    f"{group}={option} would have no effect: the recipe itself sets {key} to {found!r}; remove that "
                    f"line from the recipe (choose with 'defaults: [override /{group}: ...]' there), "
                    f"or override {key} itself"
                )
    return messages


def of_another_choice(recipe: Recipe, given: Collection[str]) -> list[str]:
    """One message for a value that the recipe has for another choice than the command line's.

    Args:
        given: the keys that the command line sets.
    """
    target, value = recipe.evaluation.target, recipe.evaluation.target_value
    if "evaluation.target" not in given or "evaluation.target_value" in given or value is None:
        return []
    if target not in _NEEDS_A_VALUE:
        return []
    return [
        f"evaluation.target={target} would be fitted with evaluation.target_value={value:g} of the recipe, which is "
        "for the recipe's own target; give evaluation.target_value, too (null: the usual one)"
    ]


def label_choice(columns: ColumnSettings, given: Collection[str]) -> ColumnSettings:
    """``columns`` without the recipe's ``label`` where the command line names ``labels``, and the other way round: they
    are one choice, and the other one would hide it."""
    alone, among = ("data.columns.label" in given), ("data.columns.labels" in given)
    if alone and not among:
        return replace(columns, labels=ColumnSettings.labels)
    return replace(columns, label=ColumnSettings.label) if among and not alone else columns


def chosen_section(section: str, given: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line sets in ``section``, by a group's option or key by key; a recipe's share is left out.

    Args:
        given: the keys that the command line sets.
        values: the composed config.
    """
    keys = {key.split(".")[1] for key in given if key.startswith(f"{section}.")}
    return {key: value_at(values, f"{section}.{key}") for key in keys}


def option_values(group: str, option: Any, folders: Sequence[Path], depth: int = 0) -> dict[str, Any]:
    """The values that an option sets by their keys, with those of the options that it includes; none where there is no
    such file, as behind a setting such as run_dir=/somewhere."""
    if group == "recipe" or "." in group or not isinstance(option, str) or Path(option).is_absolute():
        return {}
    path = next((path for folder in folders if (path := folder / group / f"{option}.yaml").is_file()), None)
    values = {} if path is None else read_settings(path)
    if path is None or not isinstance(values, Mapping) or depth > _DEEPEST:
        return {}
    package = _package(path, group)
    own = {name: value for name, value in values.items() if name != "defaults"}
    mine, found = dict(leaves(own, package)) if own else {}, dict[str, Any]()
    included = values.get("defaults", [])
    for item in included if "_self_" in included else [*included, "_self_"]:
        found |= mine if item == "_self_" else _included(item, group, folders, depth)
    return found


def _included(item: Any, group: str, folders: Sequence[Path], depth: int) -> dict[str, Any]:
    """The values of one entry of an option's defaults list."""
    found = {}
    for inner, options in _entries(item):
        own = inner[1:] if inner.startswith("/") else f"{group}/{inner}".rstrip("/")
        for option in options if isinstance(options, list) else [options]:
            found |= option_values(own, option, folders, depth + 1)
    return found


def _entries(item: Any) -> Iterator[tuple[str, Any]]:
    """Group and option of an entry: ``name``, ``group: name`` or ``optional /group: name``."""
    for name, option in item.items() if isinstance(item, Mapping) else [("", item)]:
        yield str(name).split(" ")[-1], option


def _package(path: Path, group: str) -> str:
    """Where the option's values go: what its header says, else the group."""
    lines = read_whole(path).decode("utf-8", "replace").splitlines()
    comments = takewhile(lambda line: not line.strip() or line.startswith("#"), lines)
    named = next((found[1] for line in comments if (found := _PACKAGE.match(line))), "_group_")
    own = group.replace("/", ".")
    return {"_global_": "", "_group_": own}.get(named, named)
