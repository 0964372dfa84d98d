"""``alora VERB --help``: the verb's own keys, one line each, from the schema's own words."""

import json
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from functools import reduce
from typing import Any

from alora.config.arguments import other_names
from alora.config.schema import Recipe
from alora.config.setting import Limits, settings_of

_FOOTER = """
Set a key with key=value, choose a group's option with group=option, sweep with -m key=a,b.
--help all lists the keys of every verb, --cfg job the settings that would run, --hydra-help the remaining flags.
"""


def verb_help(verb: str, values: Any, options: Callable[[str], list[str]]) -> str:
    """The keys that ``verb`` uses, with the ``values`` that the command line leaves them; ``options``: of a group."""
    lines = []
    for key, kind, limits in keys_of(verb):
        if is_dataclass(kind):
            lines += ["", f"{key}: {' '.join((kind.__doc__ or '').split()).replace('``', '')}", *_options(key, options)]
        else:
            shown = f"  {key}={_shown(reduce(lambda part, name: part[name], key.split('.'), values))}"
            names = "".join(f"or {name}=; " for name in other_names(verb, key))
            words = f"({limits.words})" if limits.meaning and limits.words else limits.words
            meaning = " ".join(filter(None, (limits.meaning, words)))
            lines.append(f"{shown:<44} {names}{meaning}".rstrip())
    return "\n".join([*_options("recipe", options), *lines, _FOOTER])


def keys_of(verb: str) -> list[tuple[str, Any, Limits]]:
    """The settings that ``verb`` uses, top-level keys first, each section before its keys."""
    verbs: dict[str, tuple[str, ...] | None] = {}
    found = []
    for key, kind, limits in settings_of(Recipe):
        verbs[key] = limits.of or limits.read_by or verbs.get(key.rpartition(".")[0])
        if verb in (verbs[key] or (verb,)):
            found.append((key, kind, limits))
    return sorted(found, key=lambda item: "." in item[0] or is_dataclass(item[1]))


def without_effect(verb: str, given: Collection[str]) -> list[str]:
    """Those of the keys ``given`` that ``verb`` does not use."""
    every, used = {key for key, _, _ in settings_of(Recipe)}, {key for key, _, _ in keys_of(verb)}
    found = []
    for key in sorted(given):
        setting = key  # or an entry of one
        while setting and setting not in every:
            setting = setting.rpartition(".")[0]
        found += [key] if setting and setting not in used else []
    return found


def _options(group: str, options: Callable[[str], list[str]]) -> list[str]:
    names = options(group)
    return [f"  {group}={'|'.join(names)}"] if names else []


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = f"[{','.join(map(str, value))}]"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
