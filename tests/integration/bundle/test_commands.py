"""``export``, ``score`` and ``evaluate`` through the command line, on a base, a run and bundles on disk."""

import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from alora.base.load import load_base
from alora.bundle.battery import write_battery
from alora.bundle.read import load_battery, load_bundle
from alora.bundle.write import BundleContents, write_bundle
from alora.cli import main
from alora.config.saved import save_recipe
from alora.config.schema import BaseSettings, DataSettings, ExportSettings, PolicySettings, Recipe
from alora.data.conversation import Conversation, Message
from alora.data.splits import read_splits
from alora.evaluation.tables import read_evaluations, write_evaluations
from alora.identity.certificate import read_certificate, write_certificate
from alora.prefix.scorer import Scorer
from alora.prompt.render import Renderer
from alora.training.layout import link_only
from alora.training.run_folder import RunFolder
from alora.verdict import label_probabilities
from tests.integration.bundle.conftest import POLICIES, PROMPT, make_contents
from tests.integration.bundle.test_read import forge, scaled
from tests.toy_recipe import toy_base_folder

CONVERSATION = {"messages": [{"role": "user", "content": "can you tell me what to take for a headache?"}]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base/`` (a model), ``rows.jsonl``, ``talk.json``, ``policy.yaml``."""
    place = tmp_path_factory.mktemp("place")
    toy_base_folder(place / "base")
    words = ("the weather was clear", "please ask one", "can you tell me", "thank you very much")
    rows = [
        {
            "messages": [{"role": "user", "content": f"{words[i % 4]} {i}"}],
            "labels": {"advice": ("violation", "ok")[i % 2], "refunds": (None, "ok", "violation")[i % 3]},
        }
        for i in range(24)
    ]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "talk.json").write_text(json.dumps(CONVERSATION))
    (place / "policy.yaml").write_text(json.dumps(POLICIES["advice"].as_dict()))
    return place


@pytest.fixture(scope="module")
def contents(place: Path) -> BundleContents:
    return make_contents(load_base(BaseSettings(source=str(place / "base"))), place / "adapter")


@pytest.fixture
def bundle(contents: BundleContents, tmp_path: Path) -> Path:
    return write_bundle(contents, tmp_path / "advice", golden_rows=2).folder


@pytest.fixture
def run_folder(contents: BundleContents, place: Path, tmp_path: Path) -> Path:
    """A run as training leaves it: recipe, adapter, certificate, bundle, and the links to those of its only policy."""
    run = tmp_path / "run"
    shutil.copytree(place / "adapter", run / "policies/advice/adapter")
    write_certificate(contents.certificate, run / "policies/advice/identity.json")
    recipe = Recipe(
        base=BaseSettings(source=str(place / "base")),
        policy=PolicySettings(file=str(place / "policy.yaml")),
        prompt=PROMPT,
        data=DataSettings(train=str(place / "rows.jsonl"), test=str(place / "rows.jsonl")),
        export=ExportSettings(golden_rows=1),
    )
    recipe.run_dir = str(tmp_path / "claimed")
    with RunFolder(recipe) as claimed:
        inputs = {f"base {name}": value for name, value in contents.base.fingerprint.as_dict().items()}
        claimed.claim(inputs | read_splits(recipe.data, [contents.policy])[0].digests([contents.policy]))
    (tmp_path / "claimed/inputs.json").rename(run / "inputs.json")
    made_from = {"policy": contents.policy.id, "adapter_digest": contents.weights.digest}
    (run / "policies/advice/training.json").write_text(json.dumps(made_from))
    save_recipe(recipe, run / "run.yaml", {})
    counted = replace(contents, data={"train": {"violation": 7, "ok": 8}})
    write_battery(run / "battery", [write_bundle(counted, run / "battery/advice", golden_rows=1)])
    link_only(run, "advice")
    return run


def add_second(bundle: Path, contents: BundleContents) -> Path:
    """A second bundle beside the first, and the battery of both."""
    folder = bundle.parent
    made = make_contents(contents.base, folder / "b", "refunds", 3)
    second = write_bundle(made, folder / "refunds", golden_rows=1)
    write_battery(folder, [load_bundle(bundle), second])
    return second.folder


def expected(contents: BundleContents) -> float:
    """The verdict's probability by the parts themselves."""
    renderer = Renderer(contents.base.tokenizer, PROMPT)
    prefix = renderer.prefix(Conversation("x", (Message("user", CONVERSATION["messages"][0]["content"]),)))
    with Scorer(contents.base, [contents.weights]) as scorer:
        (logits,) = scorer.label_logits(prefix, [renderer.suffix(contents.policy)])
    return label_probabilities(logits.tolist(), contents.operating_point.temperature)[0]


def test_score_as_json_from_standard_input(bundle, contents, place, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CONVERSATION).encode())))
    assert main(["score", f"artifact={bundle}", f"base.source={place / 'base'}", "conversation=-", "json=true"]) == 0
    document = json.loads(capsys.readouterr().out)
    (verdict,) = document["verdicts"]
    assert verdict["probability"] == pytest.approx(expected(contents), abs=1e-6)
    assert verdict["label"] == ("violation" if verdict["probability"] >= 0.42 else "ok")
    assert document["truncation"] is None


VERBS = {
    "score": "{talk}",
    "evaluate": "data.test={rows} output={out}",
    "fleet": "data.test={rows} output={out}",
    "recalibrate": "data.validation={rows} output={out}",
    "validate": "identity.dtypes=[float32] identity.conversations=1 identity.negative_controls=false",
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_adapter_that_answers_otherwise_than_at_export_is_refused(verb, bundle, place, tmp_path, capsys):
    forge(bundle, scaled)
    out, before = tmp_path / "out", sorted(bundle.iterdir())
    words = VERBS[verb].format(talk=place / "talk.json", rows=place / "rows.jsonl", out=out)
    arguments = [verb, f"artifact={bundle}", f"base.source={place / 'base'}", *words.split()]
    assert main(arguments) == 1
    outcome = capsys.readouterr()
    assert "golden rows are not answered as they were at export" in outcome.err
    assert outcome.out == ""
    assert not out.exists()
    assert sorted(bundle.iterdir()) == before


def test_score_says_that_it_truncated(bundle, place, tmp_path, capsys):
    talk = tmp_path / "long.json"
    talk.write_text(json.dumps([{"role": "user", "content": "the parcel will arrive " * 400}]))
    command = ["score", f"artifact={bundle}", f"base.source={place / 'base'}", str(talk)]
    assert main(command) == 0
    assert "the conversation was truncated" in capsys.readouterr().err
    assert main([*command, "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["truncation"]["tokens_after"] <= PROMPT.max_prefix_tokens


def test_a_run_knows_where_its_base_lies(run_folder, place, capsys):
    for artifact in (run_folder, run_folder / "bundle", run_folder / "battery", run_folder / "battery/advice"):
        assert main(["score", f"artifact={artifact}", str(place / "talk.json")]) == 0
        assert "advice" in capsys.readouterr().out


def test_a_battery_and_a_list_of_bundles_are_scored_in_one_pass(bundle, contents, place, tmp_path, capsys):
    second = add_second(bundle, contents)
    found = []
    base = f"base.source={place / 'base'}"
    for what in (f"artifact={tmp_path}", f"bundles=[{bundle},{second}]"):
        assert main(["score", what, base, str(place / "talk.json"), "json=true"]) == 0
        found.append(json.loads(capsys.readouterr().out)["verdicts"])
    assert found[0] == found[1]
    assert [verdict["policy"] for verdict in found[0]] == ["advice", "refunds"]
    assert found[0][0]["probability"] == pytest.approx(expected(contents), abs=1e-6)


def test_evaluate_a_bare_adapter_is_uncalibrated(place, tmp_path, capsys):
    rows = f"data.test={place / 'rows.jsonl'}"
    command = ["evaluate", f"artifact={place / 'adapter'}", rows, "evaluation.bootstrap=0"]
    policy, base = f"policy.file={place / 'policy.yaml'}", f"base.source={place / 'base'}"
    output = f"output={tmp_path / 'e.json'}"
    assert main([*command, policy, base, output]) == 0
    (found,) = read_evaluations(tmp_path / "e.json")
    assert (found.operating_point.target, found.operating_point.threshold) == ("none", 0.5)
    captured = capsys.readouterr()
    assert "uncalibrated" in captured.err
    assert main([*command, policy, output]) == 0  # on the base that it names, as validate has it
    assert read_evaluations(tmp_path / "e.json") == [found]


def test_evaluate_a_run_takes_its_rows_and_leaves_its_record(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", f"artifact={run_folder}", "evaluation.bootstrap=0"]) == 0
    own, words = read_evaluations(tmp_path / "evaluation.json")
    assert (own.metrics.rows, words.method) == (24, "bag_of_words")
    assert not (run_folder / "evaluation.json").exists()


def test_export_makes_the_same_bundle_again(run_folder, tmp_path, capsys):
    before = load_bundle(run_folder / "bundle")
    rows = read_certificate(run_folder / "policies/advice/identity.json")
    assert main(["export", f"artifact={run_folder}", f"output={tmp_path / 'a gain'}"]) == 0
    again = load_bundle(tmp_path / "a gain")
    assert again.weights.digest == before.weights.digest == rows.adapter_digest
    assert again.golden == before.golden
    assert again.manifest.data == before.manifest.data
    assert f"alora score 'artifact={tmp_path}/a gain' conversation.json" in capsys.readouterr().out  # safe to paste
    (run_folder / "policies/advice/identity.json").unlink()
    moved = run_folder.rename(tmp_path / "the run")
    assert main(["export", f"artifact={moved}"]) == 1
    assert f"`alora validate 'artifact={moved}/policies/advice/adapter' " in capsys.readouterr().err


def test_export_takes_the_operating_point_from_the_evaluation(run_folder, bundle, place, tmp_path):
    report = tmp_path / "report.json"
    base, data = f"base.source={place / 'base'}", f"data.test={place / 'rows.jsonl'}"
    assert main(["evaluate", f"artifact={bundle}", base, data, f"output={report}", "evaluation.bootstrap=0"]) == 0
    evaluations = read_evaluations(report)
    write_evaluations(run_folder / "policies/advice/evaluation.json", evaluations)
    assert main(["export", f"artifact={run_folder}", "export.golden_rows=0"]) == 0
    made = load_bundle(run_folder / "bundle")
    assert made.manifest.operating_point == evaluations[0].operating_point
    assert made.manifest.evaluations == tuple(evaluations)
    assert made.golden == ()


def test_what_recalibrate_fitted_in_a_run_is_what_export_takes(run_folder, place, tmp_path):
    rows = f"data.validation={place / 'rows.jsonl'}"
    before = load_bundle(run_folder / "bundle").manifest
    assert main(["recalibrate", f"artifact={run_folder / 'bundle'}", rows, "evaluation.bootstrap=0"]) == 0
    assert (run_folder / "bundle").readlink() == Path("battery/advice"), "the link stays one"
    fitted = load_bundle(run_folder / "battery/advice").manifest
    assert fitted.operating_point != before.operating_point
    assert main(["export", f"artifact={run_folder}", f"output={tmp_path / 'copy'}"]) == 0
    assert load_bundle(tmp_path / "copy").manifest == fitted
    assert main(["export", f"artifact={run_folder}"]) == 2
    assert load_bundle(run_folder / "bundle").manifest == fitted


def test_an_adapter_of_a_run_goes_by_its_runs_settings(run_folder, tmp_path):
    """Before there is a bundle; the adapter is named by its folder or by its run's link to it."""
    shutil.rmtree(run_folder / "battery")
    for artifact in (run_folder, run_folder / "adapter", run_folder / "policies/advice/adapter"):
        output = f"output={tmp_path / 'e.json'}"
        assert main(["evaluate", f"artifact={artifact}", "evaluation.bootstrap=0", output]) == 0
        assert read_evaluations(tmp_path / "e.json")[0].method == "alora"
    assert main(["export", f"artifact={run_folder}"]) == 0
    assert load_bundle(run_folder / "bundle").policy.id == "advice"
    assert [bundle.policy.id for bundle in load_battery(run_folder / "battery")] == ["advice"]


def test_export_copies_a_bundle(bundle, tmp_path, capsys):
    (bundle / "notes.txt").write_text("mine")
    assert main(["export", f"artifact={bundle}", f"output={tmp_path / 'copy'}", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["pushed_to"] is None
    assert load_bundle(tmp_path / "copy").manifest == load_bundle(bundle).manifest
    assert not (tmp_path / "copy" / "notes.txt").exists()


def test_export_replaces_no_bundle_of_another_policy(bundle, contents, tmp_path, capsys):
    """Its threshold may stand nowhere else."""
    other = add_second(bundle, contents)
    before = {file.name: file.read_bytes() for file in other.iterdir()}
    assert main(["export", f"artifact={bundle}", f"output={other}"]) == 2
    assert "holds the bundle of the policy 'refunds', not of 'advice'" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in other.iterdir()} == before
