"""Rows of files that share a name, in two folders: each keeps its own label and its own scores."""

import json
from dataclasses import replace

import pytest

from alora.config.schema import CompareSettings, DataSettings, PolicySettings, Recipe
from alora.data.conversation import Conversation, Message
from alora.data.messages import text_digest
from alora.errors import DataError
from alora.lab.compare.task import read_task
from alora.policy import Policy

FIRST, SECOND = Policy("first", "First", "Rule."), Policy("second", "Second", "Rule.")


def _write(place, label, words):
    place.parent.mkdir(exist_ok=True)
    rows = [{"prompt": f"{words} {number}", "label": label(number)} for number in range(40)]
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_test_rows_of_files_that_share_a_name_have_ids_of_their_own(tmp_path):
    for home in ("a", "b"):
        _write(tmp_path / home / "test.jsonl", lambda number: ("violation", "ok")[number % 2], home)
    _write(tmp_path / "train.jsonl", lambda number: ("violation", "ok")[number % 2], "train")
    data = DataSettings(
        train=str(tmp_path / "train.jsonl"), test=[str(tmp_path / f"{home}/test.jsonl") for home in "ab"]
    )
    policy = PolicySettings(id="first", title="First", rule="Rule.")
    task = read_task(Recipe(policy=policy, data=data, compare=CompareSettings()))
    ids = [row.conversation.id for row in task.splits.test]
    assert len(ids) == len(set(ids)) == 80
    assert ids[0] == "test.jsonl:1"


def test_a_policy_of_which_no_row_of_a_label_is_drawn_is_left_out(tmp_path):
    """The last rows by the hash that draws them are the only violations of the second policy."""
    texts = [f"row {number}" for number in range(40)]
    last = sorted(texts, key=lambda text: text_digest(Conversation("", (Message("user", text),))))[-2:]
    for name in ("train", "validation", "test"):
        rows = [
            {
                "prompt": text,
                "labels": {
                    "first": ("violation", "ok")[number % 2],
                    "second": "violation" if (text in last if name == "train" else number < 9) else "ok",
                },
            }
            for number, text in enumerate(texts)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "two.yaml").write_text(json.dumps([FIRST.as_dict(), SECOND.as_dict()]))
    data = DataSettings(**{name: str(tmp_path / f"{name}.jsonl") for name in ("train", "validation", "test")})
    recipe = Recipe(policy=PolicySettings(file=str(tmp_path / "two.yaml")), policies=["*"], data=data)
    assert [policy.id for policy in read_task(recipe).policies] == ["first", "second"]
    task = read_task(replace(recipe, compare=CompareSettings(rows=20)))
    assert [policy.id for policy in task.policies] == ["first"]
    assert task.left_out["second"].startswith("the train rows (20) hold no 'violation'")
    with pytest.raises(DataError, match="hold no 'violation'"):
        read_task(replace(recipe, policies=["second"], compare=CompareSettings(rows=20)))
