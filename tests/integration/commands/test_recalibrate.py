"""``alora recalibrate`` of a run that held its validation rows out of its training rows."""

import json
import shutil

import numpy as np
import pytest

from alora.cli import main
from alora.config.schema import EvaluationSettings
from alora.evaluation.calibration import fit_operating_point
from alora.evaluation.predict import FOLD_SLOPE
from tests.toy_recipe import toy_overrides


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    overrides = [item for item in toy_overrides(folder, folder / "run") if not item.startswith("data.validation=")]
    assert main(["train", *overrides, "data.validation_share=0.3", "data.test=null"]) == 0
    return folder / "run"


def test_out_of_fold_answers_fit_another_target_without_further_rows_and_no_other_precision(run, tmp_path, capsys):
    """The adapter has learnt from all rows of its run: only what the folds answered may fit a threshold."""
    record = json.loads((run / "policies/toy/training.json").read_text())
    assert len(record["out_of_fold"]) == 32
    found = json.loads((run / "policies/toy/evaluation.json").read_text())["evaluations"]
    assert {one["method"]: (one["split"], one["metrics"]["rows"]) for one in found} == dict.fromkeys(
        ("alora", "bag_of_words", "prompt"), ("out_of_fold", 32)
    )
    shutil.copytree(run, tmp_path / "run")
    again = ["recalibrate", f"artifact={tmp_path / 'run'}", "evaluation.bootstrap=20", "json=true"]
    assert main([*again, "evaluation.target=recall"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["policies"]
    logits, labels = np.array(record["out_of_fold"]) * (4 / 5) ** FOLD_SLOPE, np.arange(32) % 2  # of five folds
    point = fit_operating_point(logits, labels, EvaluationSettings(target="recall", bootstrap=20))
    assert (told["threshold"], told["temperature"]) == (point.threshold, point.temperature)
    assert main([*again, "base.dtype=bfloat16"]) == 2
    assert "has learnt from all rows of its run" in capsys.readouterr().err


def test_the_threshold_is_fitted_on_rows_that_the_run_did_not_train_on(run, capsys):
    again = ["recalibrate", f"artifact={run}", "evaluation.bootstrap=20"]
    assert main(again) == 0
    assert "rows that the run held out of train.jsonl" in capsys.readouterr().out
    assert main([*again, f"data.train={run.parent / 'test.jsonl'}"]) == 2
    assert "is not what the run" in capsys.readouterr().err
    rows = run.parent / "train.jsonl"
    rows.write_text(rows.read_text() + (run.parent / "test.jsonl").read_text())  # other rows are held out of it
    assert main(again) == 2
    assert "train.jsonl are not those that" in capsys.readouterr().err
    assert main([*again, f"data.validation={run.parent / 'test.jsonl'}"]) == 0
