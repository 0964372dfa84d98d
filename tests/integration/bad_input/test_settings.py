"""Settings that cannot run, places that cannot be written, and a machine that gives out."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from alora.atomic import LOCK
from alora.cli import main
from tests.forked import Forked
from tests.integration.bad_input.conftest import Case, arguments, check_refusal, tree

SETTINGS = {
    "unknown verb": Case("trian"),
    "unknown key": Case("train training.epcohs=3"),
    "a sweeper that is not installed": Case("train -m hydra/sweeper=optuna training.seed=1,2"),
    "unknown option of a group": Case("train training=fast"),
    "several mistakes, at once": Case("train adapter.rank=0 training.batch_size=0 prompt.layout=turn"),
    "settings from a pickle": Case("check --experimental-rerun=config.pickle"),
    "no base": Case("train base.source={here}/base"),
    "targets that match nothing": Case("train adapter.targets=[c_attn]"),
    "a rank above the hidden size": Case("train adapter.rank=500"),
    "a row longer than the base takes": Case(
        "train prompt.max_prefix_tokens=60000 data.test={here}/long.jsonl",
        files={"long.jsonl": '{"messages": [{"role": "user", "content": "' + "red " * 9000 + '"}], "label": "ok"}\n'},
    ),
    "a policy id that no file can have": Case(
        f"train policy.file=null policy.id={'a' * 300} policy.title=Red policy.rule=red"
    ),
    "verdicts over the conversation": Case("score artifact={place}/run {place}/talk.json output={place}/talk.json"),
    "figures over the rows": Case("evaluate artifact={place}/run output={here}/rows.json", files={"rows.json": "{}"}),
    "a certificate over the weights' config": Case(
        "validate artifact={place}/run output={place}/run/bundle/adapter_config.json"
    ),
    "a certificate over another adapter's": Case(
        "validate artifact={here}/bundle base.source={place}/base output={place}/run/policies/toy/identity.json",
        copied="run/bundle",
    ),
    "figures over a file in the working folder": Case(
        "evaluate artifact={place}/run", files={"evaluation.json": '{"mine": 1}'}
    ),
    "a battery's figures over a file": Case("fleet artifact={place}/run", files={"fleet.json": '{"mine": 1}'}),
    "a bundle over a folder with more in it": Case(
        "export artifact={place}/run output={here}/bundle",
        copied="run/bundle",
        damage=lambda bundle: (bundle / "notes.md").write_text("mine"),
    ),
    "a user's folder for a run": Case(
        "train",
        files={"run/inputs.json": '{"inputs": []}', "run/adapter/mine": "x", "run/policies/mine.yaml": "x"},
    ),
    "no rows": Case("train data.train=null"),
    "more golden rows than there are": Case("train export.golden_rows=99"),
    "no artifact": Case("validate artifact={here}/none"),
    "an artifact of something else": Case("validate artifact={place}/base"),
    "nothing to score": Case("score artifact={place}/run"),
    "a report that cannot be written": Case("evaluate artifact={place}/run output={place}/policy.yaml/report.json"),
    "a report over the run's own": Case("evaluate artifact={place}/run output={place}/run"),
    "verdicts that cannot be written": Case(
        "score artifact={place}/run {place}/talk.json output={place}/policy.yaml/v.json"
    ),
    "a bundle that cannot be written": Case("export artifact={place}/run output={place}/policy.yaml/bundle"),
    "a bundle in the way of something": Case("export artifact={place}/run output={place}"),
    "a scaffold in the way of something": Case("new base output={place}/base"),
    "a scaffold that cannot be written": Case("new mine output={place}/policy.yaml/mine"),
    "a run folder below a file": Case("train run_dir={place}/policy.yaml/run"),
    "a run folder where nobody can write": Case("train run_dir=/proc/run"),
}


CASES = {f"settings: {name}": case for name, case in SETTINGS.items()}


def test_a_run_folder_that_another_process_holds(here, refused):
    (here / "run").mkdir()
    with FileLock(here / "run" / LOCK):
        refused(Case("train", words=["another alora process works in"]))


def test_a_learning_rate_that_diverges(place, here, capsys):
    """The run stops with a reason; what it leaves is not an adapter, and no obstacle to better settings."""
    assert main(arguments("train training.learning_rate=1e30", place, here)) == 1
    output, errors = capsys.readouterr()
    assert "loss is nan at step 2" in errors
    assert "lower training.learning_rate" in errors
    assert "Traceback" not in errors + output
    assert not (here / "run/policies/toy/adapter").exists()
    assert main(arguments("train training.learning_rate=1e-3", place, here)) == 0


def run_limited(case: Case, place: Path, here: Path) -> None:
    """Run a case in a process that cannot write files above 20 kB, and check what it says."""
    process = Forked(["-m", "alora", *arguments(case.command, place, here)], os.environ, largest_file=20_000)
    output, errors = process.communicate()
    check_refusal(case, process.returncode, output, errors)


def test_a_full_disk_while_exporting(place, here):
    case = Case("export artifact={place}/run output={here}/bundle", words=["bundle cannot be written"])
    before = tree(place)
    run_limited(case, place, here)
    assert tree(here) == {}
    assert tree(place) == before


def test_a_full_disk_while_training(place, here):
    """What was whole stays; the same command goes on when there is space."""
    run_limited(Case("train", words=["free the space"]), place, here)
    left = sorted(path.name for path in (here / "run").iterdir() if path.name != LOCK)
    assert set(left) <= {"run.yaml", "inputs.json", "checkpoints"}
    assert json.loads((here / "run/inputs.json").read_text())


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.train=hub:nobody/nothing", ["hub:nobody/nothing", "cannot be loaded", "check name and network"]),
        ("base.source=nobody/nothing", ["'nobody/nothing' cannot be loaded", "base=smollm2"]),
    ],
    ids=["data set", "base"],
)
def test_a_hub_that_cannot_be_reached(setting, words, refused, monkeypatch):
    for module in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    refused(Case(f"train {setting}", words=words))
