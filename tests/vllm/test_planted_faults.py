"""The suite's own teeth: every planted fault makes the test that is named for it fail, and nothing else is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.planted_faults import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    out = tmp_path_factory.mktemp("faults") / "told.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.run_planted_faults", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert out.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text())


def test_all_named_tests_pass_without_a_fault(told):
    assert told["sound"]["failed"] == {}
    assert set(told["sound"]["passed"]) == {test for _, _, test in FAULTS}
    assert told["after"] == {}, "a fault was left in"


def test_there_are_enough_faults():
    assert len({name for name, _, _ in FAULTS}) == len(FAULTS) >= 10


@pytest.mark.parametrize(("name", "test"), [(name, test) for name, _, test in FAULTS], ids=lambda value: value)
def test_the_fault_is_caught(told, name, test):
    found = told["faults"][name]
    assert found["test"] == test
    assert found["failed"] is not None, f"{test} passes although {name} is planted"
    assert found["failed"].startswith("call:"), found["failed"]
