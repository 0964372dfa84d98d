"""What the command line itself chooses, apart from the recipe under it.

A recipe's own values come after the groups, as in any Hydra experiment file. So ``base=qwen3_4b`` on top of a recipe
that spells out ``base.source`` would be ignored without a word; such a choice is caught here.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from alora.config.received import read_settings


def silenced_choices(overrides: Sequence[str], values: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    """One message for each ``group=option`` whose keys hold other values in the end.

    Args:
        overrides: the command line's, one job's.
        values: the composed config.
        folders: where group folders lie; the first that has the option counts.
    """
    given = dict(item.lstrip("+").split("=", 1) for item in overrides if "=" in item)
    messages = []
    for group, option in given.items():
        chosen = _option(group, option, folders)
        if chosen is None:
            continue
        for key, wanted in _leaves(chosen, f"{group}."):
            found = _at(values, key)
            if found != wanted and not any(_covers(other, key) for other in given if other != group):
                messages.append(
                    f"{group}={option} would have no effect: the recipe itself sets {key} to {found!r}; remove that "
                    f"line from the recipe (choose with 'defaults: [override /{group}: ...]' there), "
                    f"or override {key} itself"
                )
    return messages


def chosen_section(
    section: str, overrides: Sequence[str], values: Mapping[str, Any], folders: Sequence[Path]
) -> dict[str, Any]:
    """What the command line sets in ``section``, by a group's option or key by key; a recipe's share is left out.

    Arguments as for :func:`silenced_choices`.
    """
    given = dict(item.lstrip("+").split("=", 1) for item in overrides if "=" in item)
    option = _option(section, given.get(section, ""), folders)
    chosen = dict(option) if isinstance(option, Mapping) else {}
    keys = {key.split(".")[1] for key in given if key.startswith(f"{section}.")}
    return chosen | {key: _at(values, f"{section}.{key}") for key in keys}


def _covers(override: str, key: str) -> bool:
    return key == override or key.startswith(f"{override}.")


def _option(group: str, option: str, folders: Sequence[Path]) -> Any:
    if group == "recipe" or "." in group or Path(option).is_absolute():  # a setting such as run_dir=/somewhere
        return None
    for folder in folders:
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            return read_settings(path)
    return None


def _leaves(values: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if key == "defaults":
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
