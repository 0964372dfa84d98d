"""From a command line to a typed recipe, by Hydra as its users know it.

:func:`load_recipe` composes one config (``hydra.compose``), checks it against the schema, makes its paths absolute, and
returns it typed. Flags that only print (``--help``, ``--cfg``) go to ``hydra.main``, and so do sweeps (``sweep.py``).
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.arguments import LOCAL_RECIPE, Arguments, local_recipe_name, read_arguments
from alora.config.choices import ALORAS_OWN, choices
from alora.config.convert import typed_recipe
from alora.config.describe import verb_help, without_effect
from alora.config.guard import RECIPE_FILE, guarded_hydra
from alora.config.overrides import explain, require_known
from alora.config.paths import absolute_paths, configs_folder
from alora.config.precedence import Choices, label_choice, of_another_choice, silenced_choices
from alora.config.received import as_written, read_settings
from alora.config.saved import PRIMARY_DEFAULTS
from alora.config.schema import Recipe
from alora.config.secrets import redacted
from alora.config.validate import check_recipe
from alora.errors import ConfigError
from alora.reading import printable

_NO_PLAIN_WORD = re.compile(r"\S*[^\s\w.,:=@%+~/-]\S*")  # a shell may take it for more than a word
# Given on every command line of hydra.main, so that they hold for a user's own primary config too.
_OF_MAIN = {
    "hydra/output": "alora",
    "hydra/help": "alora",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
    "hydra.output_subdir": "null",
}
_FLAGS = ("--help", "--cfg", "--multirun", "--config-dir", "--config-name", "--info", "--hydra-help")
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


def load_recipe(verb: str, argv: Sequence[str], note: Callable[[str], None]) -> Recipe | None:
    """The recipe that the command line describes, or None when it asked to print something, which is done.

    Args:
        verb: the command, which decides the settings that are required.
        argv: what follows the verb on the command line.
        note: receives a line about where settings come from.

    Raises:
        ConfigError: the command line or a config file cannot become a recipe.
        SystemExit: Hydra has printed its help, or does not know a flag.
    """
    arguments = read_arguments(verb, argv, Path.cwd())
    idle = [item for item in arguments.overrides if re.match(r"[+~]*hydra(?![.]searchpath)[./]", item)]
    if idle and not arguments.shows:
        note(f"{' '.join(idle)}: what is set of Hydra counts in a sweep (-m)")
    with composing(arguments, note):
        if not arguments.shows:
            recipe = to_recipe(compose(arguments, arguments.overrides), arguments)
            note_idle(arguments, recipe.given, note)
            return recipe
        if arguments.options.get("--help") == "":
            sys.stdout.write(printable(redacted(_verb_help(arguments))))
            return None
        if "--cfg" in arguments.options:
            check_recipe(_typed(compose(arguments, arguments.overrides), arguments))
        ran: list[DictConfig] = []
        hydra_main(arguments, [], ran.append)
    if ran:
        raise ConfigError("a flag of Hydra is cut short; write it in full (--hydra-help lists them)")
    return None


@contextlib.contextmanager
def composing(arguments: Arguments, note: Callable[[str], None]) -> Iterator[None]:
    """Hydra ready for what ``arguments`` name; its errors become a ConfigError."""
    if arguments.local:
        note(f"using ./{LOCAL_RECIPE}")
    if arguments.unread:
        note(f"./{LOCAL_RECIPE} is not read: the artifact has settings of its own; recipe={LOCAL_RECIPE} names it")
    try:
        with guarded_hydra():
            require_known(arguments.overrides, [configs_folder(), *arguments.roots])
            ConfigStore.instance().store(name="schema", node=asdict(Recipe()))
            for path in arguments.recipe_files:
                _offer_recipe(path)
            yield
    except COMPOSITION_ERRORS as error:
        message = explain(error)
        for path in arguments.recipe_files:
            message = message.replace(f"recipe/{local_recipe_name(path)}", str(path))
        raise ConfigError(message) from error
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        raise ConfigError(
            "a whole number has thousands of digits, more than Python reads; give a smaller one"
        ) from error


@contextlib.contextmanager
def initialised(arguments: Arguments) -> Iterator[None]:
    """Hydra with the search path that ``hydra.main`` would have."""
    folder = arguments.options.get("--config-path") or configs_folder()
    _ConfigDir.folder = arguments.config_dir
    Plugins.instance().register(_ConfigDir)
    try:
        with hydra.initialize_config_dir(str(Path(folder).absolute()), f"alora_{arguments.verb}", "1.3"):
            yield
    finally:
        _ConfigDir.folder = None


def compose(arguments: Arguments, overrides: Sequence[str]) -> DictConfig:
    """One config; what it says of Hydra itself is never used."""
    with initialised(arguments):
        composed = hydra.compose(arguments.config_name, list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(composed)  # ${hydra:job.name} refers to it
    return composed


class _ConfigDir(SearchPathPlugin):
    """``--config-dir`` where ``hydra.main`` looks, which ``hydra.compose`` does not know."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder is not None:
            search_path.append("command-line", f"file://{self.folder}")


def to_recipe(composed: DictConfig, arguments: Arguments) -> Recipe:
    """One composed config as a recipe that the verb can run: typed, checked, with absolute paths.

    Raises:
        ConfigError: unknown keys, wrong types, impossible values, paths that lead nowhere, choices without effect.
    """
    try:
        recipe = _typed(composed, arguments)
        check_recipe(recipe, arguments.verb)
        return absolute_paths(recipe, arguments.verb, arguments.roots)
    except ConfigError as error:
        raise ConfigError(as_written(str(error), OmegaConf.to_container(composed))) from None


def note_idle(arguments: Arguments, given: Collection[str], note: Callable[[str], None]) -> None:
    """A note on what the command line sets and the verb does not use, unless another setting refers to it."""
    said = " ".join(arguments.overrides)
    if idle := [key for key in without_effect(arguments.verb, given) if f"${{{key}}}" not in said]:
        note(f"{', '.join(idle)}: without effect on alora {arguments.verb}; --help lists what it uses")


def _typed(composed: DictConfig, arguments: Arguments) -> Recipe:
    plain = OmegaConf.to_container(composed)
    assert isinstance(plain, dict)
    values = {str(key): value for key, value in plain.items() if key != "hydra"}
    chosen = _choices(arguments)
    recipe = typed_recipe(values)
    recipe.given, recipe.named = chosen.given, frozenset(chosen.recipe)
    recipe.data.columns = label_choice(recipe.data.columns, chosen.given)
    if wrong := [*silenced_choices(chosen, values), *of_another_choice(recipe, chosen)]:
        raise ConfigError("\n".join(wrong))
    return recipe


def _choices(arguments: Arguments) -> Choices:
    """What the command line of the config that was composed last chooses."""
    said = HydraConfig.get().overrides
    lines = [str(line) for part in (said.hydra, said.task) for line in OmegaConf.to_container(part) or ()]  # unresolved
    here = GlobalHydra.instance().is_initialized()  # in a job of a sweep
    # Where a job works in a folder of its own, the search path is still relative to the first one.
    with contextlib.chdir(HydraConfig.get().runtime.cwd), contextlib.nullcontext() if here else initialised(arguments):
        return choices(
            arguments.options.get("--config-name") or ALORAS_OWN, lines, "--config-path" not in arguments.options
        )


def _verb_help(arguments: Arguments) -> str:
    values = OmegaConf.to_container(compose(arguments, arguments.overrides))
    folders = [folder for folder in (arguments.config_dir, configs_folder()) if folder is not None]
    return verb_help(arguments.verb, values, folders)


def complete(argv: Sequence[str], verbs: Sequence[str]) -> None:
    """Hydra's ``-sc install=SHELL``, and the shell's question that follows: a verb, then settings and flags."""
    program, _, rest = os.environ.get("COMP_LINE", "").lstrip().partition(" ")
    _, space, words = rest.lstrip().partition(" ")
    asked = any(item.startswith("query=") for item in argv)
    if asked and not space:
        sys.stdout.write(" ".join(verbs) + "\n")
        return
    if asked and (typed := words.rpartition(" ")[2]).startswith("-"):  # Hydra completes no flags
        sys.stdout.write(" ".join(flag for flag in _FLAGS if flag.startswith(typed)) + "\n")
        return
    os.environ["COMP_LINE"] = f"{program} {words}"
    arguments, printed = Arguments("", tuple(argv), ()), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), composing(arguments, lambda _: None):
            hydra_main(arguments, [], lambda _: None)
    except Exception as error:
        if not asked:  # else nothing fits what is typed so far
            raise ConfigError(f"{' '.join(argv)}: {error}") from error
    # Names of files are among what is offered, and bash runs a $(...) there before anyone has chosen it.
    sys.stdout.write(_NO_PLAIN_WORD.sub("", printed.getvalue()) if asked else printed.getvalue())


def hydra_main(arguments: Arguments, overrides: Sequence[str], task: Callable[[DictConfig], object]) -> None:
    """``hydra.main`` on the command line, which it reads from ``sys.argv``; what it prints is shown without secrets."""
    defaults = [f"{group}={option}" for group, option in _OF_MAIN.items() if not arguments.sets(group)]
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"alora {arguments.verb}".rstrip(), *arguments.flags, *defaults, *arguments.overrides, *overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else it prints exceptions and exits
    printed = io.StringIO()
    try:
        main = hydra.main(config_path=str(configs_folder()), config_name="config", version_base="1.3")(task)
        with contextlib.redirect_stdout(printed) if arguments.shows else contextlib.nullcontext():
            main()
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
        sys.stdout.write(printable(redacted(printed.getvalue())))


def _offer_recipe(path: Path) -> None:
    """Make a recipe file an option of the group ``recipe``, exactly like the ones in the recipes folder."""
    node = OmegaConf.create(read_settings(path) or {})
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{path}: a recipe is a YAML mapping of settings (name, policy, data, ...)")
    defaults = node.get("defaults")
    if isinstance(defaults, ListConfig):  # of a primary config, such as run.yaml: here they have been read already
        node["defaults"] = [item for item in defaults if item not in PRIMARY_DEFAULTS]
    name, provider = local_recipe_name(path), f"{RECIPE_FILE}{path}"
    ConfigStore.instance().store(name, node, group="recipe", package="_global_", provider=provider)
