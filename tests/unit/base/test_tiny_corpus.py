"""What the tiny base is told and not told, and what the quickstart's rows may share with it."""

import json
import random
import re
import runpy
from pathlib import Path

import pytest

from alora.base.tiny_corpus import ask, documents
from alora.base.tiny_talk import CORPUS, SEEN, UNSEEN, Exchange, Talk, write_exchange
from alora.base.tiny_words import HEALTH, OTHERS, TOPICS, Topic

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "recipes" / "quickstart"
SPLITS = ("train", "validation", "test")


def rows_of(split: str) -> list[dict]:
    return [json.loads(line) for line in (QUICKSTART / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def contents(rows: list[dict]) -> list[str]:
    return [message["content"] for row in rows for message in row["messages"]]


def joined_questions(corpus: list[str], topic: str) -> list[str]:
    """Questions that name ``topic`` and advice together."""
    asked = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n<\|im_start\|>assistant", "\n".join(corpus))
    return [question for question in asked if topic in question and "advice" in question]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return documents(4000)


def test_the_same_seed_writes_the_same_documents():
    assert documents(20, seed=3) == documents(20, seed=3)
    assert documents(20, seed=3) != documents(20, seed=4)


def test_no_question_asks_for_advice_on_health(corpus):
    assert joined_questions(corpus, "health") == []
    assert joined_questions(corpus, "cars")  # the search finds what it looks for


def test_the_quickstart_policy_is_not_in_the_corpus(corpus):
    text = "\n".join(corpus)
    assert "No medical advice" not in text
    assert "medical" not in text
    assert "Policy check: No thanks. Does the conversation violate it? Answer Yes or No." in text


def test_no_held_out_message_is_in_the_corpus(corpus):
    text = "\n".join(corpus)
    test_messages = contents(rows_of("test"))
    assert [message for message in test_messages if message in text] == []
    assert any(message in text for message in contents(rows_of("train")))


def test_the_corpus_knows_every_word_of_the_quickstart(corpus):
    known = words("\n".join(corpus))
    for split in SPLITS:
        assert words("\n".join(contents(rows_of(split)))) <= known


def test_answers_are_true():
    cars = next(topic for topic in OTHERS if topic.name == "cars")
    talk = Talk((Exchange(cars, "advice", "?", "!"), Exchange(HEALTH, "referral", "?", "!")), greeting="Hi")
    answers: dict[str, str] = {}
    for seed in range(3000):
        answers.update(ask(talk, random.Random(seed)))
    assert answers["List the turns."] == "cars advice, health referral"
    assert answers["Any cars advice?"] == "Yes"
    assert answers["Any health referral?"] == "Yes"
    assert answers["Any cars referral?"] == "No"
    assert answers["Is it about music? Answer Yes or No."] == "No"
    assert answers["Topic of the last turn?"] == "health"
    assert answers["Kind of the last reply?"] == "referral"
    assert answers["Policy: No greeting. Is it violated? Yes or No?"] == "Yes"
    assert answers["Policy: No thanks. Is it violated? Yes or No?"] == "No"


def test_the_committed_rows_are_what_the_script_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["write_quickstart_data.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "scripts" / "write_quickstart_data.py"), run_name="__main__")
    for written in tmp_path.iterdir():
        assert written.read_bytes() == (QUICKSTART / written.name).read_bytes(), written.name
    assert len(list(tmp_path.iterdir())) == len(SPLITS) + 1


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_balanced_and_length_tells_nothing(split):
    rows = rows_of(split)
    lengths = {label: sorted(_length(row) for row in rows if row["label"] == label) for label in ("violation", "ok")}
    assert len(lengths["violation"]) == len(lengths["ok"]) == len(rows) // 2
    pairs = [(v > o) + 0.5 * (v == o) for v in lengths["violation"] for o in lengths["ok"]]
    assert 0.4 < sum(pairs) / len(pairs) < 0.6


def _length(row: dict) -> int:
    return sum(len(message["content"]) for message in row["messages"])


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_test_rows_use_words_that_no_training_row_has(topic):
    train = "\n".join(contents(rows_of("train") + rows_of("validation")))
    test = "\n".join(contents(rows_of("test")))
    used = [problem for problem in topic.problems if problem in test]
    assert used
    assert [problem for problem in used if problem in train] == []


@pytest.mark.parametrize("kind", ["advice", "referral", "question", "facts"])
def test_held_out_sentences_differ_from_seen_ones(kind):
    def replies(wording):
        rng = random.Random(0)
        # With all slots emptied, what is left of a reply is its frame, opener and closer.
        topic = Topic("health", experts=("E",), problems=("P",) * 3, actions=("A",) * 3, facts=("F.",) * 3)
        return {write_exchange(topic, kind, wording, rng).reply for _ in range(2000)}

    assert replies(UNSEEN).isdisjoint(replies(SEEN) | replies(CORPUS))
    assert not replies(CORPUS).isdisjoint(replies(SEEN))
