"""``tracking=tensorboard``: the event files hold the run; and the adapter is the same bytes as without."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alora.adapter.folder import WEIGHTS_FILE
from alora.cli import main
from alora.tracking.tensorboard_log import TensorBoardLog
from alora.tracking.track import Tracking, metric_names
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


def test_the_event_files_hold_metrics_config_table_and_plots(runs):
    run = runs / "tracked"
    events = _events(run / "tracking/tensorboard")
    for name in ("train/loss", "train/loss/toy", "train/learning_rate"):
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("validation/loss/toy")] == [2, 4]
    history = json.loads((run / "training.json").read_text())["history"]
    logged = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    assert [event.value for event in events.Scalars("validation/loss/toy")] == pytest.approx(logged)
    assert "max_steps: 4" in _text(events, "config")
    assert "| toy | alora |" in _text(events, "evaluation")
    assert "| false positive rate | recall |" in _text(events, "roc/toy/alora")
    assert "| probability | share of positives |" in _text(events, "calibration/toy/alora")
    evaluations = json.loads((run / "evaluation.json").read_text())["evaluations"]
    auroc = evaluations[0]["metrics"]["figures"]["auroc"]["value"]
    assert events.Scalars("test/auroc/toy/alora")[-1].value == pytest.approx(auroc)
    for name in ("roc_plot/toy/alora", "calibration_plot/toy/alora"):
        (image,) = events.Images(name)
        assert image.encoded_image_string.startswith(b"\x89PNG")
        assert image.width > image.height > 100


def test_tracking_changes_no_byte_of_the_adapter(runs):
    tracked, plain = (runs / name / "adapter" / WEIGHTS_FILE for name in ("tracked", "plain"))
    assert tracked.read_bytes() == plain.read_bytes()
    assert not (runs / "plain/tracking").exists()


def test_tracking_may_change_between_two_calls(runs, monkeypatch, capsys):
    """It is no setting of the run; a run that is finished is not recorded again."""
    monkeypatch.setenv("ALORA_CACHE", str(runs / "cache"))
    before = sorted((runs / "tracked/tracking/tensorboard").iterdir())
    overrides = [*toy_overrides(runs, runs / "tracked"), *SMALL]
    assert main(["train", *overrides, "tracking=tensorboard"]) == 0
    assert main(["train", *overrides, "training.max_steps=3"]) == 2  # negative control: a setting that is one
    assert sorted((runs / "tracked/tracking/tensorboard").iterdir()) == before


def test_a_resumed_run_writes_what_a_killed_one_had_logged(tmp_path):
    killed = TensorBoardLog(tmp_path, {"name": "toy"})
    for step in (1, 2, 3, 4):
        killed.metrics({"train/loss": 1.0 / step}, step)
    killed.close(failed=True)
    resumed = TensorBoardLog(tmp_path, {"name": "toy"})
    resumed.go_on([(1, {"train/loss": 1.0}), (2, {"train/loss": 0.5})])  # its checkpoint was at step 2
    resumed.metrics({"train/loss": 0.25}, 3)
    resumed.close(failed=False)
    scalars = _events(tmp_path).Scalars("train/loss")
    assert [(event.step, event.value) for event in scalars] == [(1, 1.0), (2, 0.5), (3, 0.25)]


class _Broken(TensorBoardLog):
    def metrics(self, values, step):
        if step == 2:
            raise OSError("No space left on device")
        super().metrics(values, step)


def test_a_tracker_that_fails_is_told_once_and_hurts_nothing(tmp_path):
    notes: list[str] = []
    with Tracking(_Broken(tmp_path, {}), None, notes.append) as tracking:
        for step in (1, 2, 3):
            tracking.metrics({"train/loss": 1.0}, step)
        assert not tracking.active
    assert notes == ["tracking stopped, the run goes on: OSError: No space left on device"]


def test_names_that_are_recorded():
    logs = {"loss": 1.5, "loss_0": 1.0, "loss_1": 0.5, "learning_rate": 1e-3, "eval_loss_1": 2, "epoch": 0.5}
    assert metric_names(logs, ["red", "blue"]) == {
        "train/loss": 1.5,
        "train/loss/red": 1.0,
        "train/loss/blue": 0.5,
        "train/learning_rate": 1e-3,
        "validation/loss/blue": 2.0,
        "train/epoch": 0.5,
    }
    alone = {"eval_loss": 0.25, "train_loss": 3.0, "step": 4, "total_flos": float("nan")}
    assert metric_names(alone, ["red"]) == {"validation/loss": 0.25, "validation/loss/red": 0.25}
