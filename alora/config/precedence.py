"""What the command line itself chooses, apart from the recipe under it.

A recipe's own values come after the groups, as in any Hydra experiment file. So ``base=qwen3_4b`` on top of a recipe
that spells out ``base.source`` would be ignored without a word; such a choice is caught here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

from alora.config.received import value_at
from alora.config.schema import ColumnSettings, Recipe

Section = TypeVar("Section", bound=Any)  # a dataclass of alora.config.schema
_NEEDS_A_VALUE = ("fpr", "recall")  # targets of the operating point


@dataclass(frozen=True)
class Choices:
    """What a command line sets: ``keys`` by themselves, ``options`` the values of the options that it chooses (each
    with the option's name), by key; ``recipe`` what the recipe and the primary config under it set."""

    keys: frozenset[str] = frozenset()
    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> frozenset[str]:
        return self.keys | self.options.keys()


def silenced_choices(choices: Choices, values: Mapping[str, Any]) -> list[str]:
    """One message for each option's value that the composed config, ``values``, does not hold in the end."""
    messages = []
    for key, (option, value) in choices.options.items():
        found = value_at(values, key)
        whole = isinstance(value, Mapping) and isinstance(found, Mapping)
        same = all(found.get(name) == inner for name, inner in value.items()) if whole else found == value
        below = any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in choices.keys)
        if not (same or below):
            group = option.partition("=")[0]
            messages.append(
                f"{option} would have no effect: the recipe itself sets {key} to {found!r}; remove that line from the "
                f"recipe (choose with 'defaults: [override /{group}: ...]' there), or override {key} itself"
            )
    return messages


def of_another_choice(recipe: Recipe, choices: Choices) -> list[str]:
    """One message for a value that the recipe has for another choice than the command line's."""
    target, value, given = recipe.evaluation.target, recipe.evaluation.target_value, choices.given
    own = choices.recipe.get("evaluation.target") == target
    if own or "evaluation.target" not in given or "evaluation.target_value" in given or value is None:
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


def over(given: Section, of_run: Section, spelt: Collection[str], section: str) -> Section:
    """The command's settings of a section, and its run's where the command says nothing; mappings are joined.

    Args:
        spelt: ``Recipe.given``.
        section: its name, with which those keys begin.
    """
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
