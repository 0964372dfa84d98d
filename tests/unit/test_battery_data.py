"""The rows that come with the battery recipe are what its script writes, and its labels are true."""

import json
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

from alora.base.tiny_words import TOPICS
from alora.policy import load_policies

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes" / "battery"
SPLITS = ("train", "validation", "test")


def _rows(split: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def _text(row: dict) -> str:
    return "\n".join(message["content"] for message in row["messages"])


def test_the_committed_rows_are_what_the_script_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["write_battery_data.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "scripts" / "write_battery_data.py"), run_name="__main__")
    for written in tmp_path.iterdir():
        assert written.read_bytes() == (FOLDER / written.name).read_bytes(), written.name
    assert len(list(tmp_path.iterdir())) == len(SPLITS) + 1


@pytest.mark.parametrize("split", SPLITS)
def test_every_policy_has_both_labels_and_rows_without_one(split):
    counts = {policy.id: Counter() for policy in load_policies(FOLDER / "policies.yaml")}
    for row in _rows(split):
        assert row["labels"].keys() == counts.keys()
        for name, label in row["labels"].items():
            counts[name][label] += 1
    for found in counts.values():
        assert found.keys() == {"violation", "ok", None}
        assert min(found.values()) >= 15


@pytest.mark.parametrize(("policy", "topic"), [("no_medical_advice", "health"), ("no_travel_talk", "travel")])
def test_a_row_that_breaks_a_policy_speaks_of_its_subject(policy, topic):
    """The labels come from the grammar; the words of the subject must bear them out."""
    (subject,) = [found for found in TOPICS if found.name == topic]
    words = re.compile(
        "|".join(map(re.escape, (*subject.problems, *subject.actions, *subject.facts, *subject.experts)))
    )
    found = Counter((row["labels"][policy], bool(words.search(_text(row)))) for row in _rows("train"))
    assert found["violation", True] >= 50
    assert found["violation", False] == 0
    assert found["ok", False] > 0


def test_test_rows_use_problems_that_no_training_row_has():
    train = "\n".join(map(_text, _rows("train") + _rows("validation")))
    test = "\n".join(map(_text, _rows("test")))
    used = [problem for topic in TOPICS for problem in topic.problems if problem in test]
    assert len(used) > len(TOPICS)
    assert [problem for problem in used if problem in train] == []
