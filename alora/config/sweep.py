"""Many jobs from one command line: a run folder for each, a place for Hydra's records, and what became of them.

Who runs the jobs is Hydra's business (``hydra/launcher=basic``, ``joblib``, ``submitit_slurm``, ``ray``), and so is
which jobs there are (``hydra/sweeper``). A job may run in another process or on another machine, so what it has to say
travels as a file next to the run folders.
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from alora.atomic import write_json
from alora.config.arguments import Arguments, quoted, read_arguments
from alora.config.compose import note_idle, remark, to_recipe
from alora.config.hydra_main import offer_options, run_hydra
from alora.config.line import HYDRA_ERRORS, apart, explained, folders_of, is_of_hydra
from alora.config.schema import Recipe
from alora.errors import ConfigError, first_line, one_line

DONE, SKIPPED, FAILED, LOST = "done", "done before", "failed", "lost"
LOST_CODE = 2  # a job without a report: its process died; the same command resumes it
_LASTING = Path("runs", ".sweep")
_RECIPE_VALUE = "+recipe_value="  # recipe= as Hydra gets it: a value, since a file is no option
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
    """Run every job of a sweep by the launcher that was chosen, perhaps in another process; ``report`` prints an error
    and returns its exit code, ``note`` receives a line on each job."""
    arguments = read_arguments(verb, argv, Path.cwd())
    if arguments.shows:
        raise ConfigError("-m runs the jobs of a sweep; leave it out to print something")
    remark(arguments, note)
    folders = folders_of(arguments)
    shared, varied = apart(arguments.overrides, folders)
    of_hydra = [item for item in arguments.overrides if is_of_hydra(item)]
    with explained():
        changed, below = _plan(arguments, shared, varied, note)
        by_plugin = any(re.match(r"hydra/(launcher|sweeper)=(?!basic$)", item) for item in of_hydra)
        with _sweep_folder(by_plugin) as (lasting, folder):

            def task(_: DictConfig) -> float | None:
                running = HydraConfig.get()
                number = int(running.job.num)
                chosen = [item.replace(_RECIPE_VALUE, "recipe=") for item in running.overrides.task]
                what = changed[number] if number < len(changed) else " ".join(chosen)
                note(f"job {number}: {what}")

                def make() -> Recipe:
                    recipe = to_recipe(arguments, [*shared, *chosen])
                    own = recipe.policy.id if below == "policy" else number
                    return replace(recipe, run_dir=f"{recipe.run_dir}/{own}") if below else recipe

                record = _run_job(arguments.verb, JobRecord(number, what), make, run, report)
                write_json(folder / f"{number}.json", asdict(record))
                return record.metric

            offer_options(folders)
            words = ["--multirun", f"hydra.job.name=alora_{verb}", f"hydra.sweep.dir={quoted(str(lasting))}", *of_hydra]
            words += [re.sub("^recipe=", _RECIPE_VALUE, str(item.input_line)) for item in varied]
            try:
                run_hydra(verb, words, asdict(Recipe()), task)
            except Exception as error:
                if isinstance(error, HYDRA_ERRORS) or not by_plugin:
                    raise
                note(f"the launcher or sweeper gave up: {type(error).__name__}: {one_line(error)}")
            return _records(folder, changed)


def _records(folder: Path, expected: Sequence[str]) -> list[JobRecord]:
    """What the jobs left; an ``expected`` one (its changed overrides, by number) without a record is lost."""
    lost = {number: JobRecord(number, changed) for number, changed in enumerate(expected)}
    left = [JobRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    found = lost | {record.number: record for record in left}
    return [found[number] for number in sorted(found)]


def _plan(
    arguments: Arguments, shared: Sequence[str], varied: Sequence[Override], note: Callable[[str], None]
) -> tuple[list[str], str]:
    """What tells the jobs apart, and what their run folders lie below; all recipes are checked."""
    if arguments.sets("hydra/sweeper"):  # which decides as it goes
        return [], below_the_run([])
    jobs = list(itertools.product(*map(_values, varied)))
    if not jobs:
        patterns = [str(item.input_line) for item in varied if "glob(" in str(item.input_line)]
        raise ConfigError(f"this sweep has no job: {' '.join(patterns)} matches nothing; --help lists every option")
    recipes = [_numbered(arguments, [*shared, *job], number) for number, job in enumerate(jobs)]
    note_idle(arguments, {key for recipe in recipes for key in recipe.given}, note)
    changed = [" ".join(job) for job in jobs]
    if arguments.verb in _WITH_RUN_FOLDER:
        return changed, below_the_run(recipes)
    places = [place for recipe in recipes for place in _places(arguments.verb, recipe)]
    if len(set(places)) < len(places):
        raise ConfigError(
            "jobs of this sweep would write to one place, and one result alone would stay; give each its own, such as "
            "'output=results/${hydra:job.num}'"
        )
    return changed, ""


def _values(item: Override) -> list[str]:
    return [f"{item.get_key_element()}={value}" for value in item.sweep_string_iterator()]


def _numbered(arguments: Arguments, overrides: Sequence[str], number: int) -> Recipe:
    """The recipe of a job that Hydra will number so, which a setting may refer to."""
    job = {"num": number, "id": str(number), "name": f"alora_{arguments.verb}"}
    hydra: Any = HydraConfig.instance()
    before, hydra.cfg = hydra.cfg, OmegaConf.create({"hydra": {"job": job}})
    try:
        return to_recipe(arguments, overrides)
    finally:
        hydra.cfg = before


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


def below_the_run(recipes: Sequence[Recipe]) -> str:
    """What names a job's own folder below its run folder: nothing, its policy, or its number.

    Two jobs in one folder would resume or refuse each other. No recipe is known where another sweeper decides.
    """
    folders = {recipe.run_dir for recipe in recipes}
    if recipes and len(folders) == len(recipes):
        return ""
    policies = {recipe.policy.id for recipe in recipes}
    return "policy" if len(folders) == 1 and None not in policies and len(policies) == len(recipes) else "number"


@contextlib.contextmanager
def _sweep_folder(by_plugin: bool) -> Iterator[tuple[Path, Path]]:
    """A new folder below ``runs/.sweep``, where Hydra keeps its records, and one in it for those of the jobs.

    What other launchers and sweepers keep there stays (submitit its logs, Optuna its best parameters); the rest is
    removed when it was read.
    """
    lasting = Path.cwd() / _LASTING / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(4)}"
    folder = lasting / "jobs"
    made = [place for place in (lasting, lasting.parent, lasting.parent.parent) if not place.exists()]
    folder.mkdir(parents=True)
    try:
        yield lasting, folder
    finally:
        shutil.rmtree(folder if by_plugin else lasting, ignore_errors=True)
        for place in made:
            with contextlib.suppress(OSError):  # it is not empty, or gone
                place.rmdir()


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
