"""What the command line itself chooses, apart from the recipe under it.

A recipe's own values come after the groups, as in any Hydra experiment file. So ``base=qwen3_4b`` on top of a recipe
that spells out ``base.source`` would be ignored without a word; such a choice is caught here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alora.config.received import read_settings, value_at
from alora.typed import leaves


def silenced_choices(overrides: Sequence[str], values: Mapping[str, Any], folders: Sequence[Path]) -> list[str]:
    """One message for each ``group=option`` whose keys hold other values in the end.

    Args:
        overrides: the command line's, one job's.
        values: the composed config.
        folders: where group folders lie; the first that has the option counts.
    """
    given, messages = _given(overrides), []
    for group, option in given.items():
        chosen = option_values(group, option, folders)
        for key, value in leaves(chosen, group) if chosen else ():
            found = value_at(values, key)
            explicit = any(f"{key}.".startswith(f"{name}.") for name in given.keys() - {group})
            if found != value and not explicit:
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
    given = _given(overrides)
    chosen = option_values(section, given.get(section, ""), folders)
    keys = {key.split(".")[1] for key in given if key.startswith(f"{section}.")}
    return chosen | {key: value_at(values, f"{section}.{key}") for key in keys}


def _given(overrides: Sequence[str]) -> dict[str, str]:
    return dict(item.lstrip("+").split("=", 1) for item in overrides if "=" in item)


def option_values(group: str, option: Any, folders: Sequence[Path]) -> dict[str, Any]:
    """The values of an option; none where there is no such file, as behind a setting such as run_dir=/somewhere."""
    if group != "recipe" and "." not in group and isinstance(option, str) and not Path(option).is_absolute():
        for folder in folders:
            path = folder / group / f"{option}.yaml"
            if path.is_file():
                return {str(key): value for key, value in (read_settings(path) or {}).items() if key != "defaults"}
    return {}
