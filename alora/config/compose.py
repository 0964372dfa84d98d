"""From a command line to a typed recipe, by Hydra as its users know it.

``run_verb`` hands the command line to ``hydra.main``, which prints help or config, composes one config, or sweeps over
several. Each composed config is merged once more onto the schema (Hydra lets ``+typo=1`` pass), becomes a
:class:`Recipe`, gets absolute paths, is checked, and goes to the job. Nothing of Hydra or OmegaConf leaves this module.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from alora.config.arguments import LOCAL_RECIPE, OF_ARTIFACT, Arguments, local_recipe_name, read_arguments
from alora.config.explain import broken_reference, explain, unknown_key_message, unknown_keys
from alora.config.guard import RECIPE_FILE, guarded_hydra
from alora.config.paths import absolute_paths, configs_folder, recipes_folder
from alora.config.precedence import chosen_section, silenced_choices
from alora.config.received import read_settings
from alora.config.saved import PRIMARY_DEFAULTS
from alora.config.schema import Recipe
from alora.config.secrets import redacted
from alora.config.sweep import (
    JobRecord,
    changed_overrides,
    jobs_of,
    require_launcher,
    run_folders_apart,
    run_job,
    search_path,
    sweep_folder,
)
from alora.config.validate import check_recipe
from alora.errors import ConfigError
from alora.reading import printable

# Given on every command line, so that they hold for a user's own primary config too.
_HYDRA_DEFAULTS = {
    "hydra/output": "alora",
    "hydra/help": "alora",
    "hydra/job_logging": "none",
    "hydra/hydra_logging": "none",
    "hydra.output_subdir": "null",
}
_SHOW = ("--cfg", "-c", "--info", "-i", "--help", "-h")  # Hydra's flags that print settings
_COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)


def _raise(error: BaseException) -> int:
    raise error


def _never(_: Recipe) -> bool:
    return False


def _in_silence(_: Sequence[JobRecord]) -> None:
    return None


@dataclass(frozen=True)
class Sweep:
    """What a command does beside the jobs of a sweep; what is not given re-raises, skips nothing and says nothing."""

    report: Callable[[BaseException], int] = _raise
    finished: Callable[[Recipe], bool] = _never
    summarise: Callable[[Sequence[JobRecord]], None] = _in_silence


def run_verb(
    verb: str,
    argv: Sequence[str],
    job: Callable[[Callable[[], Recipe]], int],
    note: Callable[[str], None],
    sweep: Sweep | None = None,
) -> int:
    """Run ``job`` on the recipe that ``argv`` describes, once or once per job of a sweep; the highest exit code.

    Args:
        verb: the command, which decides the settings that are required.
        argv: what follows the verb on the command line.
        job: calls its argument for the recipe, does the work and returns an exit code.
        note: receives a line about where settings come from.
        sweep: what to do beside the jobs of a sweep; an error of a job is then reported, and the others still run.

    Raises:
        ConfigError: the command line or a config file cannot become a recipe.
        SystemExit: Hydra's own flags (``--help``, ``--cfg``) have printed what was asked for.
    """
    arguments = read_arguments(verb, argv, Path.cwd())
    if arguments.local:
        note(f"using ./{LOCAL_RECIPE}")
    foreign = ["base"] if arguments.local and verb in OF_ARTIFACT else []
    places = _places(arguments)

    def recipe_of(composed: DictConfig) -> Recipe:
        given = OmegaConf.to_container(HydraConfig.get().overrides.task)  # type: ignore[arg-type]
        return to_recipe(composed, verb, places, [str(item) for item in given or ()], foreign)

    with guarded_hydra(), _explained(arguments.recipe_files):
        _require_choices(arguments.overrides)
        ConfigStore.instance().store(name="schema", node=Recipe)
        for path in arguments.recipe_files:
            _offer_recipe(path)
        overrides = [*_hydra_overrides(arguments), *arguments.overrides]
        if arguments.multirun:
            return _sweep(verb, arguments, overrides, places, recipe_of, job, note, sweep or Sweep())
        return _once([*arguments.flags, *overrides], verb, recipe_of, job)


def _once(
    argv: Sequence[str],
    verb: str,
    recipe_of: Callable[[DictConfig], Recipe],
    job: Callable[[Callable[[], Recipe]], int],
) -> int:
    exit_codes: list[int] = []
    errors: list[Exception] = []

    def task(composed: DictConfig) -> None:
        try:
            exit_codes.append(job(lambda: recipe_of(composed)))
        except Exception as error:
            errors.append(error)  # Hydra would say a word of its own about it

    _run_hydra(verb, argv, task)
    if errors:
        raise errors[0]
    return max(exit_codes, default=0)


def _sweep(
    verb: str,
    arguments: Arguments,
    overrides: list[str],
    places: Sequence[Path],
    recipe_of: Callable[[DictConfig], Recipe],
    job: Callable[[Callable[[], Recipe]], int],
    note: Callable[[str], None],
    sweep: Sweep,
) -> int:
    """Every job of a sweep by the launcher that was chosen; the highest exit code."""
    require_launcher(arguments)
    changed, more = _plan(verb, arguments, overrides, places)
    with sweep_folder(arguments, verb) as (records, of_hydra):

        def task(composed: DictConfig) -> None:
            running = HydraConfig.get()
            number = int(running.job.num)
            what = changed[number] if number < len(changed) else " ".join(running.overrides.task)
            note(f"job {number}: {what}")
            records.write(run_job(number, what, lambda: recipe_of(composed), job, sweep.report, sweep.finished))

        try:
            _run_hydra(verb, [*arguments.flags, *overrides, *more, *of_hydra], task)
        except Exception as error:
            if isinstance(error, _COMPOSITION_ERRORS) or not arguments.sets("hydra/launcher"):
                raise
            note(f"the launcher gave up: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        found = records.read(changed)
    sweep.summarise(found)
    return max((record.exit_code for record in found), default=0)


def _plan(
    verb: str, arguments: Arguments, overrides: Sequence[str], places: Sequence[Path]
) -> tuple[list[str], list[str]]:
    """What tells the jobs apart, and the overrides that keep their run folders apart; all recipes are checked."""
    name = arguments.flag_value("--config-name", "-cn") or "config"
    with search_path(configs_folder(), arguments):
        jobs = jobs_of(overrides, arguments)
        changed = changed_overrides(jobs)
        if verb != "train":
            return changed, []
        recipes = [to_recipe(hydra.compose(name, job), verb, places) for job in jobs]
    return changed, run_folders_apart(recipes, changed)


def _run_hydra(verb: str, argv: Sequence[str], task: Callable[[DictConfig], None]) -> None:
    main = hydra.main(config_path=str(configs_folder()), config_name="config", version_base="1.3")(task)
    with _command_line(verb, argv):
        if not any(flag.partition("=")[0] in _SHOW for flag in argv):
            return main()
        shown = io.StringIO()
        try:
            with contextlib.redirect_stdout(shown):
                main()
        finally:
            sys.stdout.write(printable(redacted(shown.getvalue())))


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
        settings = OmegaConf.create(plain)
        if broken := broken_reference(settings):
            raise ConfigError(broken)
        recipe = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Recipe), settings))
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
    node = OmegaConf.create(read_settings(path) or {})
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{path}: a recipe is a YAML mapping of settings (name, policy, data, ...)")
    defaults = node.get("defaults")
    if isinstance(defaults, ListConfig):  # of a primary config, such as run.yaml: here they have been read already
        node["defaults"] = [item for item in defaults if item not in PRIMARY_DEFAULTS]
    ConfigStore.instance().store(
        group="recipe",
        name=local_recipe_name(path),
        node=node,
        package="_global_",
        provider=f"{RECIPE_FILE}{path}",
    )


def _hydra_overrides(arguments: Arguments) -> list[str]:
    return [f"{group}={option}" for group, option in _HYDRA_DEFAULTS.items() if not arguments.sets(group)]


def _require_choices(overrides: Sequence[str]) -> None:
    """Hydra fails without a word on ``training=null``, where a section's place takes the name of one of its options."""
    groups = {folder.name for folder in configs_folder().iterdir() if folder.is_dir()}
    sections = {field.name for field in fields(Recipe)}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if not override.key_or_group:
            raise ConfigError(f"{override.input_line!r} sets nothing; write key=value")
        if override.is_delete() and override.key_or_group in sections:
            raise ConfigError(
                f"{override.input_line}: a section or setting cannot be removed; leave it out, or give it another value"
            )
        if override.key_or_group not in groups or override.is_delete() or override.is_sweep_override():
            continue
        value = override.value()
        if not all(isinstance(name, str) for name in (value if isinstance(value, list) else [value])):
            raise ConfigError(
                f"{override.input_line}: {override.key_or_group} takes the name of one of its options "
                f"({override.key_or_group}=NAME); leave it out, or set values below it"
            )


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
