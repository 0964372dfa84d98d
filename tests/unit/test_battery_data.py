"""The rows that come with the recipes: both labels everywhere, and no test row that training has seen."""

import json
from collections import Counter
from pathlib import Path

import pytest

from alora.policy import read_policies

ROOT = Path(__file__).parents[2]
SPLITS = {"quickstart": ("train", "test"), "battery": ("train", "validation", "test")}


def _rows(recipe: str, split: str) -> list[dict]:
    file = ROOT / "recipes" / recipe / f"{split}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _replies(rows: list[dict]) -> set[str]:
    return {message["content"] for row in rows for message in row["messages"] if message["role"] == "assistant"}


@pytest.mark.parametrize("split", SPLITS["battery"])
def test_every_policy_of_the_battery_has_both_labels_and_rows_without_one(split):
    counts = {policy.id: Counter() for policy in read_policies(ROOT / "recipes/battery/policies.yaml")}
    for row in _rows("battery", split):
        assert row["labels"].keys() == counts.keys()
        for name, label in row["labels"].items():
            counts[name][label] += 1
    for found in counts.values():
        assert found.keys() == {"violation", "ok", None}
        assert min(found.values()) >= 5


@pytest.mark.parametrize("recipe", SPLITS)
def test_no_conversation_is_in_two_splits_and_test_rows_have_replies_of_their_own(recipe):
    talks = [{json.dumps(row["messages"]) for row in _rows(recipe, split)} for split in SPLITS[recipe]]
    assert sum(map(len, talks)) == len(set().union(*talks))
    greetings = {"Hello, how can I help?", "Hi, what can I do for you?", "Hello, what can I do?",
                 "Sorry, I was away. How can I help?"}  # fmt: skip
    seen = {reply for split in SPLITS[recipe][:-1] for reply in _replies(_rows(recipe, split))}
    assert _replies(_rows(recipe, "test")) & seen <= greetings
