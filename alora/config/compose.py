"""From a command line to a typed recipe, by Hydra as its users know it.

``run_verb`` hands the command line to ``hydra.main``, which prints help or config, composes one config, or sweeps over
several. Each composed config is merged once more onto the schema (Hydra lets ``+typo=1`` pass), becomes a
:class:`Recipe`, gets absolute paths, is checked, and goes to the job. Nothing of Hydra or OmegaConf leaves this module.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.arguments import LOCAL_RECIPE, OF_ARTIFACT, Arguments, local_recipe_name, read_arguments
from alora.config.explain import explain, unknown_key_message, unknown_keys
from alora.config.paths import absolute_paths, configs_folder, recipes_folder
from alora.config.precedence import chosen_section, silenced_choices
from alora.config.schema import Recipe
from alora.config.validate import check_recipe
from alora.errors import ConfigError

# Given on every command line, so that they hold for a user's own primary config too.
_HYDRA_DEFAULTS = {
    "hydra/output": "alora",
    "hydra/help": "alora",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
    "hydra.output_subdir": "null",
}
_COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


class JobFailed(Exception):
    """A job in another process has said what went wrong; its exit code is all that travels."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(exit_code)


def run_verb(
    verb: str, argv: Sequence[str], job: Callable[[Callable[[], Recipe]], int], note: Callable[[str], None]
) -> int:
    """Run ``job`` on the recipe that ``argv`` describes, once or once per job of a sweep; the highest exit code.

    Args:
        verb: the command, which decides the settings that are required.
        argv: what follows the verb on the command line.
        job: calls its argument for the recipe, does the work and returns an exit code. It raises nothing, so that in
            a sweep the other jobs still run.
        note: receives a line about where settings come from.

    Raises:
        ConfigError: the command line or a config file cannot become a recipe.
        SystemExit: Hydra's own flags (``--help``, ``--cfg``) have printed what was asked for.
    """
    arguments = read_arguments(verb, argv, Path.cwd())
    if arguments.local:
        note(f"using ./{LOCAL_RECIPE}")
    foreign = ["base"] if arguments.local and verb in OF_ARTIFACT else []
    places = _places(arguments)

    exit_codes: list[int] = []
    home = os.getpid()

    def task(composed: DictConfig) -> None:
        if arguments.multirun:
            running = HydraConfig.get()
            note(f"job {running.job.num}: {' '.join(running.overrides.task)}")
        overrides = list(HydraConfig.get().overrides.task)
        exit_code = job(lambda: to_recipe(composed, verb, places, overrides, foreign))
        exit_codes.append(exit_code)
        if exit_code and os.getpid() != home:
            raise JobFailed(exit_code)  # a launcher's worker has no other way to tell

    with _explained(arguments.recipe_files):
        ConfigStore.instance().store(name="schema", node=Recipe)
        for path in arguments.recipe_files:
            _offer_recipe(path)
        overrides = [*_hydra_overrides(arguments), *arguments.overrides]
        if arguments.multirun and verb == "train":
            _refuse_shared_run_folders(arguments, overrides, verb, places)
        with _sweep_folder(arguments) as more, _command_line(verb, [*arguments.flags, *overrides, *more]):
            try:
                hydra.main(config_path=str(configs_folder()), config_name="config", version_base="1.3")(task)()
            except JobFailed as failed:
                exit_codes.append(failed.exit_code)
    return max(exit_codes, default=0)


def to_recipe(
    composed: DictConfig,
    verb: str,
    places: Sequence[Path],
    overrides: Sequence[str] = (),
    foreign: Sequence[str] = (),
) -> Recipe:
    """One composed config as a recipe that ``verb`` can run: typed, with absolute paths, checked.

    ``foreign`` sections hold what ``overrides`` choose and nothing else.

    Raises:
        ConfigError: unknown keys, wrong types, impossible values, paths that lead nowhere, choices without effect.
    """
    with _explained():
        plain = OmegaConf.to_container(composed)
        assert isinstance(plain, dict)
        plain = {str(key): value for key, value in plain.items()}
        unknown = unknown_keys(plain)
        if unknown:
            raise ConfigError("\n".join(unknown_key_message(key) for key in unknown))
        for section in foreign:
            plain[section] = chosen_section(section, overrides, plain, [*places, configs_folder()])
        silenced = silenced_choices(overrides, plain, [*places, configs_folder()])
        if silenced:
            raise ConfigError("\n".join(silenced))
        recipe = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Recipe), OmegaConf.create(plain)))
    assert isinstance(recipe, Recipe)
    check_recipe(recipe, verb)
    return absolute_paths(recipe, verb, places)


def _places(arguments: Arguments) -> list[Path]:
    """Where the recipe's relative paths are looked up, in order; absolute, because a sweep's jobs may run elsewhere."""
    places = [Path.cwd(), *(path.parent for path in arguments.recipe_files)]
    config_dir = arguments.flag_value("--config-dir", "-cd")
    if config_dir is not None:
        places += [Path(config_dir).absolute(), Path(config_dir).absolute() / "recipe"]
    return list(dict.fromkeys([*places, recipes_folder()]))


def _offer_recipe(path: Path) -> None:
    """Make a recipe file an option of the group ``recipe``, exactly like the ones in the recipes folder."""
    try:
        node: Any = OmegaConf.load(path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{path}: a recipe is a YAML mapping of settings (name, policy, data, ...)")
    ConfigStore.instance().store(group="recipe", name=local_recipe_name(path), node=node, package="_global_")


def _hydra_overrides(arguments: Arguments) -> list[str]:
    return [f"{group}={option}" for group, option in _HYDRA_DEFAULTS.items() if not arguments.sets(group)]


def _refuse_shared_run_folders(
    arguments: Arguments, overrides: Sequence[str], verb: str, places: Sequence[Path]
) -> None:
    """Jobs of a sweep that train into one folder would resume or refuse each other; say so before the first starts."""
    if arguments.sets("hydra/sweeper"):
        return  # only the basic sweeper's jobs are known beforehand; the run folder itself refuses other settings
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    name = arguments.flag_value("--config-name", "-cn") or "config"
    config_dir = arguments.flag_value("--config-dir", "-cd")
    extra = [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"] if config_dir else []
    owners: dict[str, list[str]] = {}
    with hydra.initialize_config_dir(str(configs_folder()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        batches = BasicSweeper.split_arguments(parser.parse_overrides(list(overrides)), None)
        for job in batches[0]:
            composed = hydra.compose(name, [*job, *extra])
            changed = " ".join(item for item in job if not item.startswith("hydra/"))
            owners.setdefault(to_recipe(composed, verb, places).run_dir, []).append(changed)
    shared = {folder: jobs for folder, jobs in owners.items() if len(jobs) > 1}
    if shared:
        lines = [f"{folder}: {len(jobs)} jobs ({'; '.join(jobs[:3])})" for folder, jobs in shared.items()]
        raise ConfigError(
            "jobs of this sweep would train into one run folder; make name or run_dir depend on what is swept, "
            "for example 'name=seed_${training.seed}'\n" + "\n".join(lines)
        )


@contextlib.contextmanager
def _sweep_folder(arguments: Arguments) -> Iterator[list[str]]:
    """Hydra writes a sweep's record to a folder; a launcher may need it to last, the built-in one does not."""
    if not arguments.multirun or arguments.sets("hydra.sweep.dir") or arguments.sets("hydra/launcher"):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="alora-sweep-") as folder:
        yield [f"hydra.sweep.dir='{folder}'"]


@contextlib.contextmanager
def _command_line(verb: str, arguments: Sequence[str]) -> Iterator[None]:
    """``hydra.main`` reads ``sys.argv``, and hands exceptions through only when this variable asks for it."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"alora {verb}", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


@contextlib.contextmanager
def _explained(recipe_files: Sequence[Path] = ()) -> Iterator[None]:
    try:
        yield
    except _COMPOSITION_ERRORS as error:
        message = explain(error)
        for path in recipe_files:
            message = message.replace(f"recipe/{local_recipe_name(path)}", str(path))
        raise ConfigError(message) from error
