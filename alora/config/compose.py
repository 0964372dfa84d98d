"""From a command line to a typed recipe: schema ← option files ← recipe ← command line, in that order.

An option that the command line names takes the place of the recipe's, and is laid over the recipe's own values.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf

from alora.config.arguments import LOCAL_RECIPE, Arguments, read_arguments
from alora.config.describe import without_effect
from alora.config.fill import fill, fresh, keys_of, resolved
from alora.config.hydra_main import show
from alora.config.line import folders_of, is_of_hydra, read_line
from alora.config.needs import check_recipe
from alora.config.option_files import RECIPE, SettingsFile
from alora.config.paths import absolute_paths
from alora.config.schema import ColumnSettings, Recipe
from alora.errors import ConfigError

_MOST = 20  # problems named at once


@dataclass(frozen=True)
class Composed:
    """``settings`` as they are to run, references not followed; the keys that the command line sets by itself, and
    those of the recipe that it names."""

    settings: DictConfig
    given: frozenset[str]
    named: frozenset[str]


def load_recipe(verb: str, argv: Sequence[str], note: Callable[[str], None]) -> Recipe | None:
    """The recipe that ``argv``, which follows ``verb``, describes; None when it asked to print something, which is
    done, or SystemExit by Hydra's help. ``note`` receives a line about where settings come from."""
    arguments = read_arguments(verb, argv, Path.cwd())
    remark(arguments, note)
    if arguments.shows:
        composed = compose(arguments, arguments.overrides)
        if "--cfg" in arguments.options:
            check_recipe(_typed(composed))
        show(arguments, composed.settings)
        return None
    if idle := [item for item in arguments.overrides if is_of_hydra(item) and "hydra.searchpath=" not in item]:
        note(f"{' '.join(idle)}: what is set of Hydra counts in a sweep (-m)")
    recipe = to_recipe(arguments, arguments.overrides)
    note_idle(arguments, recipe.given, note)
    return recipe


def remark(arguments: Arguments, note: Callable[[str], None]) -> None:
    """A note on a recipe that nobody named."""
    if arguments.local:
        note(f"using ./{LOCAL_RECIPE}")
    if arguments.unread:
        note(f"./{LOCAL_RECIPE} is not read: the artifact has settings of its own; recipe={LOCAL_RECIPE} names it")


def note_idle(arguments: Arguments, given: Collection[str], note: Callable[[str], None]) -> None:
    """A note on what the command line sets and the verb does not use, unless another setting refers to it."""
    said = " ".join(arguments.overrides)
    if idle := [key for key in without_effect(arguments.verb, given) if f"${{{key}}}" not in said]:
        note(f"{', '.join(idle)}: without effect on alora {arguments.verb}; --help lists what it uses")


def to_recipe(arguments: Arguments, overrides: Sequence[str]) -> Recipe:
    """The recipe that the verb can run: typed, checked, with absolute paths."""
    recipe = _typed(compose(arguments, overrides))
    check_recipe(recipe, arguments.verb)
    return absolute_paths(recipe, arguments.verb, arguments.roots)


def compose(arguments: Arguments, overrides: Sequence[str]) -> Composed:
    """The one order of all settings."""
    folders = folders_of(arguments)
    line = read_line(overrides, folders)
    recipes: list[SettingsFile] = []  # each after those that it starts from
    for name in line.options.pop((RECIPE, None), ()):
        is_file = name.endswith((".yaml", ".yml"))
        recipes += folders.lineage(folders.read(Path(name)) if is_file else folders.read_option(RECIPE, name))
    chosen = {group: option for file in recipes for group, option in file.options.items()}
    named = {group for group, _ in line.options}
    below = [folders.read_option(group, option) for group, option in chosen.items() if group not in named]
    below += recipes
    above = [
        folders.read_option(group, option, package)
        for (group, package), options in line.options.items()
        for option in options
    ]
    settings = fresh()
    problems = [*line.problems, *_lay(settings, below)]
    before = settings.evaluation.target
    problems += _lay(settings, above)
    problems += [problem for values in line.values for _, problem in fill(settings, values, in_file=False)]
    for dictionary, name in line.removed:
        OmegaConf.select(settings, dictionary).pop(name, None)
    if problems:
        raise ConfigError("\n".join(problems[:_MOST]))
    given = {key for values in (*line.values, *(file.values for file in above)) for key in keys_of(values)}
    if settings.evaluation.target != before and "evaluation.target_value" not in given:
        settings.evaluation.target_value = None  # the recipe's is for its own target
    of_recipes = {key for file in below for key in keys_of(file.values)}
    return Composed(settings, frozenset(given), frozenset(of_recipes))


def _lay(settings: DictConfig, files: Sequence[SettingsFile]) -> list[str]:
    """Fill in the files' values; a line for each that cannot be."""
    return [f"{file.where(k)}: {text}" for file in files for k, text in fill(settings, file.values, in_file=True)]


def _typed(composed: Composed) -> Recipe:
    setup_globals()  # the resolvers that Hydra's command line knows
    recipe = resolved(composed.settings)
    recipe.given, recipe.named = composed.given, composed.named
    # One choice: the recipe's other one would hide what the command line names.
    chosen = [name for name in ("label", "labels") if f"data.columns.{name}" in composed.given]
    if len(chosen) == 1:
        other = "labels" if chosen == ["label"] else "label"
        setattr(recipe.data.columns, other, getattr(ColumnSettings, other))
    return recipe
