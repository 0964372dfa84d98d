"""Rows of files that share a name, in two folders: each keeps its own label and its own scores."""

import json

from alora.config.schema import CompareSettings, DataSettings, PolicySettings, Recipe
from alora.lab.compare.task import read_task


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
