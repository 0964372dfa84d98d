"""``alora recalibrate`` of a run that held its validation rows out of its training rows."""

import json
import shutil

import pytest

from alora.cli import main
from tests.toy_recipe import toy_overrides


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    overrides = [item for item in toy_overrides(folder, folder / "run") if not item.startswith("data.validation=")]
    assert main(["train", *overrides, "data.validation_share=0.3", "data.test=null"]) == 0
    return folder / "run"


def test_the_threshold_is_fitted_on_rows_that_the_run_did_not_train_on(run, capsys):
    again = ["recalibrate", f"artifact={run}", "evaluation.bootstrap=20"]
    assert main(again) == 0
    assert "rows that the run held out of train.jsonl" in capsys.readouterr().out
    assert main([*again, f"data.train={run.parent / 'test.jsonl'}"]) == 2
    assert "is not what the run in" in capsys.readouterr().err
    rows = run.parent / "train.jsonl"
    rows.write_text(rows.read_text() + (run.parent / "test.jsonl").read_text())  # other rows are held out of it
    assert main(again) == 2
    assert "train.jsonl are not those that" in capsys.readouterr().err
    assert main([*again, f"data.validation={run.parent / 'test.jsonl'}"]) == 0


def test_a_bundle_outside_its_run_cannot_say_what_it_was_trained_on(run, tmp_path, capsys):
    alone = shutil.copytree(run / "battery/toy", tmp_path / "toy")
    given = (f"artifact={alone}", f"base.source={run.parent / 'base'}", f"data.train={run.parent / 'test.jsonl'}")
    assert main(["recalibrate", *given]) == 2
    assert "it was trained on, only its run knows" in capsys.readouterr().err


def test_a_battery_does_not_take_the_place_of_one_with_other_bundles(run, tmp_path, capsys):
    shutil.copytree(run / "battery/toy", tmp_path / "other")
    (tmp_path / "battery.json").write_text(listed := json.dumps({"schema_version": 1, "bundles": ["other"]}))
    given = (f"base.source={run.parent / 'base'}", f"data.validation={run.parent / 'test.jsonl'}")
    assert main(["recalibrate", f"battery={run / 'battery'}", *given, f"output={tmp_path}"]) == 2
    assert "battery.json also lists other, and would not any more" in capsys.readouterr().err
    assert (tmp_path / "battery.json").read_text() == listed
    assert not (tmp_path / "toy").exists()
