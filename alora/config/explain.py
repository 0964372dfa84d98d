"""Say which key is wrong and which one was probably meant."""

import difflib
from typing import Any

from alora.config.elsewhere import advice
from alora.config.schema import Recipe
from alora.config.setting import settings_of

# What is meant by a name that several sections have, or that alora has not.
_MEANT = {"seed": "training.seed", "rank": "adapter.rank", "model": "base.source"}


def schema_types() -> dict[str, Any]:
    """Every dotted key of the schema with its type, sections included."""
    return {key: kind for key, kind, _ in settings_of(Recipe)}


def nearest_key(key: str) -> str | None:
    """The key of the schema that was probably meant, or None."""
    if key in _MEANT:
        return _MEANT[key]
    known = list(schema_types())
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    last = key.rpartition(".")[2]
    same_name = [name for name in known if name.rpartition(".")[2] == last]
    if same_name:
        return max(same_name, key=lambda name: difflib.SequenceMatcher(None, name, key).ratio())
    leaves = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(last, leaves, n=1, cutoff=0.7)
    return leaves[close[0]] if close else None


def unknown_key_message(key: str) -> str:
    """One sentence on a key that does not exist: a slip, or a setting of another library."""
    if key == "recipe":
        return "a recipe's values came out under the key 'recipe'; let its file begin with '# @package _global_'"
    if known_elsewhere := advice(key):
        return known_elsewhere
    meant = nearest_key(key)
    remedy = f"did you mean '{meant}'?" if meant and meant != key else "--help lists every key"
    return f"unknown key '{key}': {remedy}"
