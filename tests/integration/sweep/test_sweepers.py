"""Hydra's sweepers other than its own: they choose a job's values by what the jobs before it returned."""

import sys
from pathlib import Path

import hydra_plugins
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from alora.config.sweep import DONE, FAILED, run_sweep


class Descent(Sweeper):
    """Halves the learning rate until the jobs' value rises; passes over a job without one."""

    __module__ = "hydra_plugins.descent"  # where Hydra looks for it

    def setup(self, *, hydra_context, task_function, config):
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments):
        fixed = [item for item in arguments if not item.startswith("training.learning_rate=")]
        rate, best = 0.8, float("inf")
        for number in range(10):
            (job,) = self.launcher.launch([[*fixed, f"training.learning_rate={rate}"]], initial_job_idx=number)
            value = best if job.return_value is None else job.return_value
            if value > best:
                return
            best, rate = value, rate / 2


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _sweep(*more: str):
    """Records of a sweep whose jobs are best at a learning rate of 0.2, and that fails at 0.4."""

    def run(recipe):
        rate = recipe.training.learning_rate
        return (1, None, False) if rate == 0.4 else (0, abs(rate - 0.2), False)

    argv = ["-m", "base=smollm2", "policy.title=t", "policy.rule=r", "data.train=rows.jsonl", *more]
    records = run_sweep("train", argv, run, lambda error: 2, lambda text: None)
    return max(record.exit_code for record in records), records


def test_a_sweeper_reads_what_the_jobs_return(here, monkeypatch):
    monkeypatch.setattr(hydra_plugins, "descent", sys.modules[__name__], raising=False)
    Plugins.instance().register(Descent)
    node = {"_target_": "hydra_plugins.descent.Descent"}
    ConfigStore.instance().store(group="hydra/sweeper", name="descent", node=node)
    code, records = _sweep("hydra/sweeper=descent")
    assert code == 1
    assert [record.changed for record in records] == [f"training.learning_rate={rate}" for rate in (0.8, 0.4, 0.2, 0.1)]
    assert [record.outcome for record in records] == [DONE, FAILED, DONE, DONE]
    assert [record.metric for record in records] == [pytest.approx(0.6), None, 0.0, pytest.approx(0.1)]
    assert [Path(record.where) for record in records] == [here / f"runs/run/{number}" for number in range(4)]
