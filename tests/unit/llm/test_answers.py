"""Answers that are kept: what a damaged or foreign file can do to those that follow, nothing."""

import json

import pytest

from alora.llm.calls import Answers
from alora.llm.client import JudgeUsage
from alora.llm.judge import read_kept
from alora.llm.judge_prompt import Answer


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe",
        b'{"key": "a", "te',
        b'{"key": "a", "text": "x", "usage": [1]}',
    ],
)
def test_a_damaged_line_is_passed_over_and_the_rest_is_kept(tmp_path, damage):
    file = tmp_path / "calls.jsonl"
    good = json.dumps({"key": "b", "text": "kept", "usage": {"requests": 2}}).encode()
    file.write_bytes(b"\n".join((damage, good)))
    answers = Answers(file, lambda kept: kept["text"])
    assert answers.known == {"b": "kept"}
    assert answers.usage == JudgeUsage(requests=2)


@pytest.mark.parametrize(("label_id", "confidence"), [("0", 0.5), (0, "high"), (0, float("nan")), (True, 0.5)])
def test_an_answer_that_is_none_is_asked_again(tmp_path, label_id, confidence):
    kept = [
        {"key": "a", "label_id": label_id, "confidence": confidence},
        {"key": "b", "label_id": 1, "confidence": 0.5},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, kept)))
    assert Answers(tmp_path / "p.jsonl", read_kept).known == {"b": Answer(1, 0.5)}
