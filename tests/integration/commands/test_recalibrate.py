"""``alora recalibrate`` of a run that held its validation rows out of its training rows."""

import json
import shutil

import numpy as np
import pytest
from scipy.special import softmax

from alora.cli import main
from alora.commands import recalibrate
from alora.config.schema import EvaluationSettings
from alora.evaluation.calibration import fit_operating_point
from alora.evaluation.predict import SURER
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
    logits, labels = np.array(record["out_of_fold"]) * (2 / 3) ** SURER, np.arange(32) % 2  # of three folds
    point = fit_operating_point(logits, labels, EvaluationSettings(target="recall", bootstrap=20))
    assert (told["threshold"], told["temperature"]) == (point.threshold, point.temperature)
    assert main([*again, "base.dtype=bfloat16"]) == 2
    assert "has learnt from all rows of its run" in capsys.readouterr().err


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


def test_what_is_told_is_what_each_threshold_does_on_the_rows(run, tmp_path, monkeypatch, capsys):
    seen = []
    shown = recalibrate._show
    monkeypatch.setattr(recalibrate, "_show", lambda *given: (seen.append(given[1]), shown(*given)))
    bundle = shutil.copytree(run / "battery/toy", tmp_path / "toy")
    rows = [json.loads(line) for line in (run.parent / "test.jsonl").read_text().splitlines()]
    rows[2]["label"] = next(
        row["label"] for row in rows if row["label"] != rows[2]["label"]
    )  # the adapter is wrong there
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"base.source={run.parent / 'base'}", f"data.validation={tmp_path / 'rows.jsonl'}", "json=true"]
    costs = ["evaluation=lowest_cost", "evaluation.false_negative_cost=1000", "evaluation.bootstrap=20"]
    assert main(["recalibrate", f"artifact={bundle}", *given, *costs]) == 0
    (told,), ((refit,),) = json.loads(capsys.readouterr().out)["policies"], seen
    old, predictions = refit.bundle.manifest.operating_point, refit.predictions
    assert told["old threshold"] == old.threshold != told["threshold"]
    for point, names in ((old, ("old recall", "old FPR")), (refit.point, ("recall", "FPR"))):
        scaled_NL = predictions.logits_NL / point.temperature + [point.bias, 0.0]
        fired = softmax(scaled_NL, axis=1)[:, 0] >= point.threshold
        labels = predictions.label_ids_N == 0
        rates = [(fired & side).sum() / side.sum() for side in (labels, ~labels)]
        assert [told[name] for name in names] == pytest.approx(rates)


def test_a_battery_does_not_take_the_place_of_one_with_other_bundles(run, tmp_path, capsys):
    shutil.copytree(run / "battery/toy", tmp_path / "other")
    (tmp_path / "battery.json").write_text(listed := json.dumps({"schema_version": 1, "bundles": ["other"]}))
    given = (f"base.source={run.parent / 'base'}", f"data.validation={run.parent / 'test.jsonl'}")
    assert main(["recalibrate", f"battery={run / 'battery'}", *given, f"output={tmp_path}"]) == 2
    assert "battery.json also lists other, and would not any more" in capsys.readouterr().err
    assert (tmp_path / "battery.json").read_text() == listed
    assert not (tmp_path / "toy").exists()
