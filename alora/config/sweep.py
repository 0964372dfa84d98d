"""Many jobs from one command line: a run folder for each, a place for Hydra's records, and what became of them.

Who runs the jobs is Hydra's business (``hydra/launcher=basic``, ``joblib``, ``submitit_slurm``, ``ray``), and so is
which jobs there are (``hydra/sweeper``). A job may run in another process or on another machine, so what it has to say
travels as a file next to the run folders.
"""

import contextlib
import functools
import importlib
import itertools
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from alora.atomic import write_json
from alora.config.arguments import Arguments, quoted, read_arguments
from alora.config.compose import (
    COMPOSITION_ERRORS,
    compose,
    composing,
    hydra_main,
    initialised,
    note_idle,
    to_recipe,
)
from alora.config.environment import outside_the_current_folder
from alora.config.schema import Recipe
from alora.errors import ConfigError, first_line, one_line

DONE, SKIPPED, FAILED, LOST = "done", "done before", "failed", "lost"
LOST_CODE = 2  # a job without a report: its process died; the same command resumes it
_LASTING = Path("runs", ".sweep")
# Launchers that a file may choose: none of them rents machines.
_BY_FILE = (".BasicLauncher", ".JoblibLauncher", ".LocalLauncher", ".SlurmLauncher", ".RayLauncher")
_WITH_RUN_FOLDER = ("train", "compare")
_WRITING_HERE = ("evaluate", "fleet", "report")  # into the working folder, where no output= is given
_IN_PLACE = ("recalibrate", "export")  # into the artifact


@dataclass(frozen=True)
class JobRecord:
    """What became of one job: ``outcome`` is one of :data:`DONE`, :data:`SKIPPED`, :data:`FAILED`, :data:`LOST`."""

    number: int
    changed: str  # the overrides that make it this job
    outcome: str = LOST
    exit_code: int = LOST_CODE
    where: str | None = None  # its run folder, or its output
    metric: float | None = None  # what a sweeper lowers
    message: str = "it left no report: look at its log, then run the same command again"


Run = Callable[[Recipe], tuple[int, float | None, bool]]  # exit code, what a sweeper lowers, whether it was done before


def run_sweep(
    verb: str, argv: Sequence[str], run: Run, report: Callable[[BaseException], int], note: Callable[[str], None]
) -> list[JobRecord]:
    """Run every job of a sweep by the launcher that was chosen, perhaps in another process.

    Args:
        run: one job.
        report: prints an error and says its exit code.
        note: receives a line on each job.

    Raises:
        ConfigError: the command line does not describe jobs.
    """
    arguments = read_arguments(verb, argv, Path.cwd())
    if arguments.shows:
        raise ConfigError("-m runs the jobs of a sweep; leave it out to print something")
    arguments = replace(arguments, overrides=_last_of_each(arguments.overrides))
    with composing(arguments, note):
        changed, below = _plan(arguments, note)
        launcher, sweeper = _launcher_and_sweeper(arguments)
        if not (arguments.sets("hydra/launcher") or launcher.endswith(_BY_FILE)):
            raise ConfigError(f"a file chooses {launcher}, which it may not; give hydra/launcher=NAME as an argument")
        by_plugin = not (launcher.startswith("hydra._internal.") and sweeper.startswith("hydra._internal."))
        with _sweep_folder(arguments, by_plugin) as (folder, of_hydra):

            def task(composed: DictConfig) -> float | None:
                _leave_rays_folder(arguments.cwd)
                running = HydraConfig.get()
                number = int(running.job.num)
                chosen = [item for item in running.overrides.task if item not in arguments.overrides]
                what = changed[number] if number < len(changed) else " ".join(chosen)
                note(f"job {number}: {what}")
                make = functools.partial(_own_recipe, composed, arguments, below, number)
                record = _run_job(arguments.verb, JobRecord(number, what), make, run, report)
                write_json(folder / f"{number}.json", asdict(record))
                return record.metric

            try:
                with _ray_elsewhere() if "hydra_ray_launcher" in launcher else contextlib.nullcontext():
                    hydra_main(arguments, of_hydra, task)
            except Exception as error:
                if isinstance(error, COMPOSITION_ERRORS) or not by_plugin:
                    raise
                note(f"the launcher or sweeper gave up: {type(error).__name__}: {one_line(error)}")
            return _records(folder, changed)


def _leave_rays_folder(folder: Path) -> None:
    """Go to the command's ``folder`` from where :func:`_ray_elsewhere` left a worker; a machine may lack it."""
    if Path.cwd().samefile(sys.prefix):
        with contextlib.suppress(OSError):
            os.chdir(folder)


@contextlib.contextmanager
def _ray_elsewhere() -> Iterator[None]:
    """Hydra's launcher is to start Ray outside: where Ray starts is what its workers search first for modules."""
    ray: Any = importlib.import_module("ray")
    init, ray.init = ray.init, outside_the_current_folder()(ray.init)
    try:
        yield
    finally:
        ray.init = init


def _last_of_each(overrides: Sequence[str]) -> tuple[str, ...]:
    """``overrides`` without those that a later one of the same key and kind replaces, as in a single run: a sweeper
    would take the last values at the first one's place among the jobs.

    Raises:
        ConfigError: a single run would merge them, and a sweeper would not.
    """
    last = {item.partition("=")[0].removeprefix("++"): number for number, item in enumerate(overrides)}
    kept: list[str] = []
    for number, item in enumerate(overrides):
        key, _, value = item.removeprefix("++").partition("=")
        if last[key] == number or re.match(r"[+~]*hydra[./]", key):  # no sweeper gets those
            kept.append(item)
        elif value.startswith("{"):
            raise ConfigError(
                f"{key.lstrip('+')} has several mappings, or keys in quotes: a sweep merges none; put it into a recipe"
            )
    return tuple(kept)


def _records(folder: Path, expected: Sequence[str]) -> list[JobRecord]:
    """What the jobs left; an ``expected`` one (its changed overrides, by number) without a record is lost."""
    lost = {number: JobRecord(number, changed) for number, changed in enumerate(expected)}
    left = [JobRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    found = lost | {record.number: record for record in left}
    return [found[number] for number in sorted(found)]


def _launcher_and_sweeper(arguments: Arguments) -> tuple[str, str]:
    """The classes that Hydra will run the jobs by, also where a recipe names them."""
    with initialised(arguments):
        loader = GlobalHydra.instance().config_loader()
        composed = loader.load_configuration(arguments.config_name, list(arguments.overrides), RunMode.MULTIRUN)
    return str(composed.hydra.launcher["_target_"]), str(composed.hydra.sweeper["_target_"])


def _plan(arguments: Arguments, note: Callable[[str], None]) -> tuple[list[str], str]:
    """What tells the jobs apart, and what their run folders lie below; all recipes are checked.

    Raises:
        ConfigError: they cannot run, or would write to one place.
    """
    with initialised(arguments):
        jobs = _jobs_of(arguments)
    numbered = [[*job, f"hydra.job.num={number}", f"hydra.job.id={number}"] for number, job in enumerate(jobs)]
    recipes = [to_recipe(compose(arguments, job), arguments) for job in numbered]
    note_idle(arguments, {key for recipe in recipes for key in recipe.given}, note)
    changed = [" ".join(item for item in job if item not in arguments.overrides) for job in jobs]
    if arguments.verb in _WITH_RUN_FOLDER:
        return changed, below_the_run(recipes)
    places = [place for recipe in recipes for place in _places(arguments.verb, recipe)]
    if len(set(places)) < len(places):
        raise ConfigError(
            "jobs of this sweep would write to one place, and one result alone would stay; give each its own, such as "
            "'output=results/${hydra:job.num}'"
        )
    return changed, ""


def _places(verb: str, recipe: Recipe) -> list[str]:
    """What a job writes, besides what goes to standard output: ``output``, or what its verb takes in its place."""
    if recipe.output is not None:
        return [os.path.normpath(recipe.output)]
    if verb == "bench":  # a folder for each workload
        return [recipe.bench.workload]
    if verb in _WRITING_HERE:
        return ["."]
    if verb in _IN_PLACE and recipe.artifact is not None:  # bundle by bundle
        own = f"{os.path.normpath(recipe.artifact)} {recipe.export.push_to}"
        return [f"{own} {policy}" for policy in recipe.policies or ("*",)]
    return []


def _jobs_of(arguments: Arguments) -> list[list[str]]:
    """The overrides of each job; none when another sweeper decides as it goes. Hydra must be initialised.

    Raises:
        ConfigError: there is no job, because a pattern matches nothing.
    """
    if arguments.sets("hydra/sweeper"):
        return []
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    values = [
        [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parser.parse_overrides(list(arguments.overrides))
    ]
    jobs = [list(job) for job in itertools.product(*values)]
    if not jobs:
        patterns = [item for item in arguments.overrides if "glob(" in item]
        raise ConfigError(f"this sweep has no job: {' '.join(patterns)} matches nothing; --help lists every option")
    return jobs


def below_the_run(recipes: Sequence[Recipe]) -> str:
    """What names a job's own folder below its run folder: nothing, its policy, or its number.

    Two jobs in one folder would resume or refuse each other. No recipe is known where another sweeper decides.
    """
    folders = {recipe.run_dir for recipe in recipes}
    if recipes and len(folders) == len(recipes):
        return ""
    policies = {recipe.policy.id for recipe in recipes}
    return "policy" if len(folders) == 1 and None not in policies and len(policies) == len(recipes) else "number"


def _own_recipe(composed: DictConfig, arguments: Arguments, below: str, number: int) -> Recipe:
    recipe = to_recipe(composed, arguments)
    own = recipe.policy.id if below == "policy" else number
    return replace(recipe, run_dir=f"{recipe.run_dir}/{own}") if below else recipe


@contextlib.contextmanager
def _sweep_folder(arguments: Arguments, by_plugin: bool) -> Iterator[tuple[Path, list[str]]]:
    """Where the jobs' records lie, and the overrides that tell Hydra where to keep its own.

    The built-in launcher runs jobs in this process and needs nothing to last. Another one gets the absolute path of a
    new folder below ``runs/.sweep``, and so does another sweeper: what they keep there (submitit its logs, Optuna its
    best parameters) stays, and the records are removed when they were read.
    """
    if by_plugin:
        # New: Hydra writes through links in it, submitit unpickles results in it, and `runs` may be a received folder.
        lasting = Path.cwd() / _LASTING / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(4)}"
        lasting.mkdir(parents=True)
        folder = lasting / "jobs"
        folder.mkdir()
    else:
        lasting = folder = Path(tempfile.mkdtemp(prefix="alora-sweep-"))
    try:
        named = arguments.sets("hydra.sweep.dir")
        if not named and "${" in str(lasting):  # the override would have it resolved
            raise ConfigError(f"jobs of this sweep would go to {lasting}; give that folder a name without '${{'")
        more = [] if named else [f"hydra.sweep.dir={quoted(str(lasting))}"]
        more += [] if arguments.sets("hydra.job.name") else [f"hydra.job.name=alora_{arguments.verb}"]
        yield folder, more
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            lasting.rmdir()  # when nothing was kept in it
            lasting.parent.rmdir()
            lasting.parent.parent.rmdir()


def _run_job(
    verb: str, record: JobRecord, make: Callable[[], Recipe], run: Run, report: Callable[[BaseException], int]
) -> JobRecord:
    """Run one job to its record; an error is reported here, so that the other jobs still run."""
    try:
        recipe = make()
        record = replace(record, where=recipe.run_dir if verb in _WITH_RUN_FOLDER else recipe.output)
        code, metric, done = run(recipe)
    except Exception as error:
        return replace(record, outcome=FAILED, exit_code=report(error), message=first_line(error))
    message, outcome = f"exit code {code}" if code else "", SKIPPED if done else FAILED if code else DONE
    return replace(record, outcome=outcome, exit_code=code, metric=metric, message=message)
