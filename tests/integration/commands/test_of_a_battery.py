"""check, train, validate, evaluate on a battery with a file for each policy, by its run and by its folder."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from alora.adapter.folder import WEIGHTS_FILE
from alora.cli import main
from alora.evaluation.tables import read_evaluations
from tests.toy_recipe import QUICK, toy_base_folder, toy_rows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """``base/``, ``red.train.jsonl`` and so on, ``policies.yaml`` and the finished ``run/``."""
    place = tmp_path_factory.mktemp("battery")
    toy_base_folder(place / "base")
    for number, name in enumerate(("red", "blue")):
        toy_rows(place / f"{name}.train.jsonl", 48, seed=number, policy=name)
        toy_rows(place / f"{name}.test.jsonl", 20 + 4 * number, seed=10 + number, policy=name)
    (place / "policies.yaml").write_text("- {id: red, title: No red}\n- {id: blue, title: No blue}\n")
    assert main(["check", *recipe(place)]) == 0
    assert main(["train", *recipe(place)]) == 0
    return place


def recipe(place):
    return [
        f"base.source={place / 'base'}",
        f"policy.file={place / 'policies.yaml'}",
        "policies=[red,blue]",
        f"data.train={place}/%policy%.train.jsonl",
        f"data.validation={place}/%policy%.test.jsonl",
        f"data.test={place}/%policy%.test.jsonl",
        f"run_dir={place / 'run'}",
        *QUICK,
    ]


def at(place, which):
    """The artifact's setting, as a run or as its battery; the battery alone does not know where a local base lies."""
    return {"run": f"artifact={place / 'run'}", "battery": f"battery={place / 'run/battery'}"}[which]


def test_evaluate_each_policy_on_its_own_rows(place, tmp_path):
    output = tmp_path / "evaluation.json"
    assert main(["evaluate", at(place, "battery"), f"output={output}", "evaluation.bootstrap=0"]) == 0
    found = [(one.policy, one.method, one.metrics.rows) for one in read_evaluations(output)]
    assert found == [
        *[("red", "alora", 20), ("red", "bag_of_words", 20)],
        *[("blue", "alora", 24), ("blue", "bag_of_words", 24)],
    ]
    recorded = read_evaluations(place / "run/policies/red/evaluation.json")
    made = {file.name.removeprefix("evaluation.") for file in tmp_path.iterdir()}
    assert made == {"json", "parquet", "html", "red.html", "blue.html"}
    assert 'href="evaluation.red.html"' in (tmp_path / "evaluation.html").read_text()
    assert set(pq.read_table(tmp_path / "evaluation.parquet")["policy"].to_pylist()) == {"red", "blue"}
    assert read_evaluations(output)[0].metrics.value("auroc") == recorded[0].metrics.value("auroc")


def test_evaluate_never_writes_over_a_users_page(place, tmp_path):
    name = "e.red.html"
    (tmp_path / name).write_text("<!doctype html>mine")
    command = ["evaluate", at(place, "run"), f"output={tmp_path / 'e.json'}", "evaluation.bootstrap=0"]
    assert main(command) == 2
    assert [file.name for file in tmp_path.iterdir()] == [name]
    (tmp_path / name).unlink()
    assert main([*command, "strict=false"]) == 0
    assert main([*command, "evaluation.report_texts=false"]) == 0  # its own are replaced
    assert "says red" not in (tmp_path / "e.red.html").read_text()


def test_evaluate_leaves_out_what_has_no_rows_and_says_so(place, tmp_path, capsys):
    shutil.copy(place / "red.test.jsonl", tmp_path)
    command = ["evaluate", at(place, "run"), f"data.test={tmp_path}/%policy%.test.jsonl", "evaluation.bootstrap=0"]
    output = tmp_path / "e.json"
    assert main([*command, f"output={output}"]) == 1
    assert "blue is left out: " in capsys.readouterr().err
    assert {one.policy for one in read_evaluations(output)} == {"red"}
    assert main([*command, f"output={tmp_path / 'blue.json'}", "policies=[blue]"]) == 2
    assert main([*command, f"output={tmp_path / 'red.json'}", "policies=[red]"]) == 0
    assert not (tmp_path / "blue.json").exists()


def test_export_and_fleet_of_one_policy(place, tmp_path, capsys):
    output, base = f"output={tmp_path / 'blue'}", f"base.source={place / 'base'}"
    assert main(["export", at(place, "battery"), output, "policies=[grey]"]) == 2
    assert "has no policy grey; it has red, blue" in capsys.readouterr().err
    assert main(["export", at(place, "battery"), output, "policies=[blue]"]) == 0
    assert json.loads((tmp_path / "blue/alora.json").read_text())["policy"]["id"] == "blue"
    fleet = ["fleet", at(place, "run"), base, f"output={tmp_path / 'f.json'}", "evaluation.bootstrap=0"]
    assert main([*fleet, f"fleet.against={place / 'run'}", "policies=[blue]"]) == 0
    found = json.loads((tmp_path / "f.json").read_text())
    assert [one["policy"] for one in found["evaluations"]] == [one["policy"] for one in found["drifts"]] == ["blue"]


def test_validate_names_the_one_that_fails_and_certifies_the_other(place, tmp_path, capsys):
    battery = shutil.copytree(place / "run/battery", tmp_path / "battery")
    weights = battery / "red" / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-9])
    command = ["validate", f"battery={battery}", f"base.source={place / 'base'}", "json=true", *QUICK[-4:-2]]
    assert main(command) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["passed"], list(report["certificates"])) == (False, ["blue"])
    assert "is cut short" in report["failures"]["red"]
    assert "Traceback" not in captured.err
    assert main([*command, "policies=[blue]"]) == 0
