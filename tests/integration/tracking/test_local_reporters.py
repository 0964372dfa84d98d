"""``tracking=mlflow`` and ``tracking=trackio``: a run that is killed goes on in its own record, on this machine."""

import importlib.util

import pytest
from transformers import TrainerControl, TrainerState

from alora.config.schema import Recipe, TrackingSettings
from alora.errors import MissingDependency
from alora.training.tracking import require_tracking, start_tracking

pytestmark = pytest.mark.filterwarnings("ignore")  # their own, on import
STEPS = [(1, 1.0), (2, 0.5), (3, 0.25)]


def _killed_and_resumed(kind: str, folder) -> None:
    recipe = Recipe(name="toy", run_dir=str(folder), tracking=TrackingSettings(kind=kind, project="alora-test"))
    notes: list[str] = []
    killed = start_tracking(recipe, folder, False, notes.append)
    killed.log({"loss": 1.0, "eval_loss/toy": 2.0}, 1)
    del killed
    if kind == "mlflow":
        import mlflow

        mlflow.end_run("KILLED")  # as the process's end does
    log = [{"loss": 1.0, "step": 1}, {"loss": 0.5, "step": 2}]
    with start_tracking(recipe, folder, True, notes.append) as resumed:
        resumed.callback(["toy"]).on_train_begin(None, TrainerState(global_step=2, log_history=log), TrainerControl())
        resumed.log({"loss": 0.25}, 3)
        assert resumed.active
    with start_tracking(recipe, folder, True, notes.append) as finished:
        assert not finished.active
    assert notes == []


@pytest.mark.parametrize("kind", ["mlflow", "trackio"])
def test_a_missing_package_is_named(kind, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=f"pip install {kind}"):
        require_tracking(TrackingSettings(kind=kind))


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_keeps_one_run(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(None)
    _killed_and_resumed("mlflow", tmp_path / "run")
    (run,) = mlflow.search_runs(experiment_names=["alora-test"], output_format="list")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert "max_steps" in run.data.params["training"]
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert sorted({(item.step, item.value) for item in history}) == STEPS
    assert "eval_loss/toy" in run.data.metrics


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_keeps_one_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    _killed_and_resumed("trackio", tmp_path / "run")
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = Api().runs("alora-test")
    assert run.name.startswith("run-")
    entries = SQLiteStorage.get_logs("alora-test", run.name, run_id=run.id)
    logged = {(entry["train/global_step"], entry["train/loss"]) for entry in entries if "train/loss" in entry}
    assert sorted(logged) == STEPS
    assert run.config["training"]["max_steps"] == -1
