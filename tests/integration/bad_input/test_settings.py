"""A run folder that is taken, a loss that diverges, and a machine that gives out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from alora.cli import main
from alora.training.run_folder import LOCK
from tests.forked import Forked
from tests.integration.bad_input.promise import Case, arguments, breaches_of_words, listing


def test_a_run_folder_that_another_process_holds(here, refused):
    (here / "run").mkdir()
    with FileLock(here / "run" / LOCK):
        refused(Case("train", ["another alora process works in", "set run_dir="]))


def test_a_learning_rate_that_diverges(place, here, capsys):
    """The run stops with a reason; what it leaves is no adapter, and no obstacle to better settings."""
    assert main(arguments("train training.learning_rate=1e30", place, here)) == 1
    output, errors = capsys.readouterr()
    assert "loss is nan at step 2" in errors
    assert "lower training.learning_rate" in errors
    assert "Traceback" not in errors + output
    assert not (here / "run/adapter").exists()
    assert main(arguments("train training.learning_rate=1e-3", place, here)) == 0


def run_limited(case: Case, place: Path, here: Path) -> None:
    """Run a case in a process that cannot write files above 20 kB, and check what it says."""
    process = Forked(arguments(case.command, place, here), os.environ, largest_file=20_000)
    output, errors = process.communicate()
    assert breaches_of_words(case, process.returncode, output, errors) == []


def test_a_full_disk_while_exporting(place, here):
    case = Case("export artifact={place}/run output={here}/bundle", ["bundle cannot be written", "with space"])
    before = listing(place)
    run_limited(case, place, here)
    assert listing(here) == {}
    assert listing(place) == before


def test_a_full_disk_while_training(place, here):
    """What was whole stays; the same command goes on when there is space."""
    run_limited(Case("train", ["free the space"]), place, here)
    left = sorted(path.name for path in (here / "run").iterdir() if path.name != LOCK)
    assert set(left) <= {"run.yaml", "inputs.json", "checkpoints"}
    assert json.loads((here / "run/inputs.json").read_text())


def test_a_full_disk_for_the_output(place, here):
    case = Case("score artifact={place}/run conversation={place}/talk.json", ["No space left", "free the space"])
    command = [sys.executable, "-m", "alora", *arguments(case.command, place, here)]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert breaches_of_words(case, result.returncode, "", result.stderr) == []
    assert listing(here) == {}


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
    refused(Case(f"train {setting}", words))
