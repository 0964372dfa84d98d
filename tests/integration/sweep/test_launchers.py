"""Many policies by Hydra's launchers: none loses another, what is finished is skipped, each has its own folder."""

import os
import time
from pathlib import Path

import pytest

from alora.config.sweep import DONE, FAILED, LOST, SKIPPED, run_sweep
from alora.errors import ConfigError, DataError

ROOT = Path(__file__).parents[3]
LAUNCHERS = {
    "basic": [],
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "submitit": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=2"],
    "ray": [
        "hydra/launcher=ray",
        "+hydra.launcher.ray.init.num_cpus=2",
        "+hydra.launcher.ray.init.include_dashboard=false",
    ],
}
# Ray and submitit warn about themselves: a future change of a default, a file that they leave to the collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning", "ignore::DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with three policies of its own, and rows."""
    (tmp_path / "conf/policy").mkdir(parents=True)
    for name in ("toy_a", "toy_bad", "toy_c"):
        (tmp_path / f"conf/policy/{name}.yaml").write_text(f"id: {name}\ntitle: {name}\nrule: Nobody says {name}.\n")
    (tmp_path / "rows.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield tmp_path
    _stop_workers()


def _highest(records) -> int:
    return max(record.exit_code for record in records)


def _fails(error: BaseException) -> int:
    raise error


def _stop_workers() -> None:
    import ray
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)
    if ray.is_initialized():
        ray.shutdown()


def _call(launcher: str, *more: str):
    """Exit code and records of a sweep over the policies; the job of one of them fails as ``train`` would."""

    here = Path.cwd()

    def run(recipe):
        assert Path.cwd() == here
        if recipe.policy.id == "toy_bad":
            raise DataError("rows of toy_bad cannot be used", ["rows.jsonl:1: broken"])
        done = Path(recipe.run_dir, "process").exists()
        if not done:
            Path(recipe.run_dir).mkdir(parents=True)
            Path(recipe.run_dir, "process").write_text(str(os.getpid()))
        return 0, float(len(recipe.policy.id)), done

    records = run_sweep(
        "train",
        ["-m", "--config-dir", "conf", "policy=glob(toy_*)", "base=smollm2", "data.train=rows.jsonl", "name=fleet",
         *LAUNCHERS[launcher], *more],
        run, lambda error: 2, lambda text: None,
    )  # fmt: skip
    return _highest(records), records


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failed_job_loses_no_other_and_finished_ones_are_skipped(here, launcher):
    code, records = _call(launcher)
    assert code == 2
    assert [record.changed for record in records] == ["policy=toy_a", "policy=toy_bad", "policy=toy_c"]
    assert [record.outcome for record in records] == [DONE, FAILED, DONE]
    assert [record.metric for record in records] == [5.0, None, 5.0]
    assert records[1].message == "rows of toy_bad cannot be used"
    folders = [here / "runs/fleet" / name for name in ("toy_a", "toy_bad", "toy_c")]
    assert [record.where for record in records] == [str(folder) for folder in folders]
    processes = {(folder / "process").read_text() for folder in (folders[0], folders[2])}
    assert (str(os.getpid()) in processes) == (launcher == "basic")
    if launcher in ("submitit", "ray"):
        return  # the second call says nothing new about the launcher, and each start takes seconds
    code, records = _call(launcher)
    assert code == 2
    assert [record.outcome for record in records] == [SKIPPED, FAILED, SKIPPED]
    assert list((here / "runs").glob(".sweep/*/jobs")) == []


def test_a_process_that_dies_is_lost_and_named(here):
    """It writes no record; the launcher's own error is told, and the exit code says that something is to be done."""

    def run(recipe):
        if recipe.policy.id == "toy_bad":
            deadline = time.monotonic() + 60  # joblib ends every process when one dies, so the first must be done
            while not list(here.glob("runs/.sweep/*/jobs/0.json")) and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(9)
        return 0, None, False

    notes = []
    records = run_sweep(
        "train",
        ["-m", "--config-dir", "conf", "policy=glob(toy_*)", "base=smollm2", "data.train=rows.jsonl",
         "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        run, lambda error: 2, notes.append,
    )  # fmt: skip
    assert _highest(records) == 2
    assert [record.outcome for record in records][:2] == [DONE, LOST]
    assert any("the launcher or sweeper gave up" in note for note in notes)


@pytest.mark.parametrize(
    ("verb", "more", "place"),
    [
        ("evaluate", ["data.test=rows.jsonl"], "artifact"),
        ("report", ["logs.verdicts=rows.jsonl"], "logs.examples"),
        ("plan", ["output=plan.json"], "plan.policies"),
    ],
)
def test_jobs_that_would_write_to_one_place_are_refused(here, verb, more, place):
    """The last one's result alone would stay."""
    for name in ("one", "two"):
        (here / name).mkdir()
    changes = {"artifact": "one,two", "logs.examples": "3,4", "plan.policies": "3,4"}[place]
    jobs = ["-m", *more, f"{place}={changes}"]
    with pytest.raises(ConfigError, match=r"would write to one place.*'output=results/\$\{hydra:job.num\}'"):
        run_sweep(verb, jobs, lambda recipe: (0, None, False), _fails, print)
    (here / "results").mkdir()
    apart = [*(item for item in jobs if not item.startswith("output=")), f"output=results/${{{place}}}"]
    outputs = []
    records = run_sweep(verb, apart, lambda recipe: (outputs.append(recipe.output), (0, None, False))[1], _fails, print)
    assert [record.outcome for record in records] == [DONE, DONE]
    assert len(set(outputs)) == 2
