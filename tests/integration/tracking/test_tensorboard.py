"""``tracking=tensorboard``: the event files hold the run; and the adapter is the same bytes as without."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerControl, TrainerState

from alora.adapter.folder import WEIGHTS_FILE
from alora.cli import main
from alora.config.schema import Recipe, TrackingSettings
from alora.training.tracking import metric_names, start_tracking
from tests.toy_recipe import toy_overrides

SMALL = ("identity.negative_controls=false", "export.golden_rows=0", "evaluation.bootstrap=0", "training.max_steps=4")


def _events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "images": 0, "scalars": 0}).Reload()


def _text(events: EventAccumulator, name: str) -> str:
    return events.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0].decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run with TensorBoard and one without anything."""
    folder = tmp_path_factory.mktemp("tensorboard")
    overrides = [*toy_overrides(folder, folder / "tracked"), *SMALL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALORA_CACHE", str(folder / "cache"))
        assert main(["train", *overrides, "tracking=tensorboard"]) == 0
        assert main(["train", *overrides, f"run_dir={folder / 'plain'}"]) == 0
    return folder


def test_the_event_files_hold_metrics_and_config(runs):
    run = runs / "tracked"
    events = _events(run / "tracking/tensorboard")
    for name in ("train/loss", "train/loss/toy", "train/learning_rate"):
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("eval/loss/toy")] == [2, 4]
    history = json.loads((run / "policies/toy/training.json").read_text())["history"]
    logged = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    assert [event.value for event in events.Scalars("eval/loss/toy")] == pytest.approx(logged)
    assert json.loads(_text(events, "args"))["training"]["max_steps"] == 4
    evaluations = json.loads((run / "policies/toy/evaluation.json").read_text())["evaluations"]
    auroc = evaluations[0]["metrics"]["figures"]["auroc"]["value"]
    assert events.Scalars("test/auroc/toy/alora")[-1].value == pytest.approx(auroc)


def test_tracking_changes_no_byte_of_the_adapter(runs):
    tracked, plain = (runs / name / "adapter" / WEIGHTS_FILE for name in ("tracked", "plain"))
    assert tracked.read_bytes() == plain.read_bytes()
    assert not (runs / "plain/tracking").exists()


def _tracked(folder: Path, resumed: bool, notes: list[str]):
    recipe = Recipe(run_dir=str(folder), tracking=TrackingSettings(kind="tensorboard"))
    return start_tracking(recipe, folder, resumed, notes.append)


def test_a_resumed_run_writes_what_a_killed_one_had_logged(tmp_path):
    notes: list[str] = []
    killed = _tracked(tmp_path, False, notes)
    for step in (1, 2, 3, 4):
        killed.log({"loss": 1.0 / step}, step)
    trainer = TrainerState(global_step=2, log_history=[{"loss": 1.0, "step": 1}, {"loss": 0.5, "step": 2}])
    with _tracked(tmp_path, True, notes) as resumed:  # its checkpoint was at step 2
        resumed.callback(["toy"]).on_train_begin(None, trainer, TrainerControl())
        resumed.log({"loss": 0.25}, 3)
    scalars = _events(tmp_path / "tracking/tensorboard").Scalars("train/loss")
    assert [(event.step, event.value) for event in scalars] == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert notes == []


def test_a_tracker_that_fails_is_told_once_and_hurts_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    notes: list[str] = []
    with _tracked(tmp_path, False, notes) as tracking:
        tracking.log({"loss": 1.0}, 1)
        monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
        for step in (2, 3):
            tracking.log({"loss": 1.0}, step)
        assert not tracking.active
    assert notes == ["tracking stopped, the run goes on: OSError: No space left on device"]


def test_names_that_are_recorded():
    logs = {"loss": 1.5, "loss_0": 1.0, "loss_1": 0.5, "learning_rate": 1e-3, "eval_loss_1": 2, "epoch": 0.5}
    assert metric_names(logs, ["red", "blue"]) == {
        "loss": 1.5,
        "loss/red": 1.0,
        "loss/blue": 0.5,
        "learning_rate": 1e-3,
        "eval_loss/blue": 2.0,
        "epoch": 0.5,
    }
    alone = {"eval_loss": 0.25, "train_loss": 3.0, "step": 4, "total_flos": float("nan")}
    assert metric_names(alone, ["red"], "red/") == {"eval_red/loss": 0.25, "eval_red/loss/red": 0.25}
