"""A long conversation in windows: each fits, all of it is read, and what is next to each other is read together."""

from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import pytest

from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.evaluation.predict import predict
from alora.policy import Policy
from alora.prompt import truncate
from alora.prompt.render import Renderer
from alora.prompt.windows import windows
from tests.toy_tokenizers import toy_tokenizer

LIMIT = 240
POLICY = Policy("p", "Title", "Rule")
SYSTEM = Message("system", "You sell shoes only.")
TALK = [SYSTEM, *(Message(("user", "assistant")[i % 2], f"turn {i} about parcel {i} and shoe {i}.") for i in range(60))]
CASES = [(family, layout) for family in ("qwen3", "gemma3", "llama3") for layout in ("transcript", "turns")]


def renderer(family="qwen3", layout="transcript", truncation="windows", limit=LIMIT):
    return Renderer(
        toy_tokenizer(family), PromptSettings(layout=layout, truncation=truncation, max_prefix_tokens=limit)
    )


def read(this, messages):
    """The windows' prefixes and their texts."""
    prefixes = this.windows(Conversation("x", tuple(messages)))
    return prefixes, [this._tokenizer.decode(prefix.token_ids) for prefix in prefixes]


@pytest.mark.parametrize(("family", "layout"), CASES)
def test_each_message_is_whole_in_a_window_next_to_the_one_before(family, layout):
    prefixes, texts = read(renderer(family, layout), TALK)
    assert 3 <= len(prefixes) <= 30
    assert all(len(prefix.token_ids) <= LIMIT and prefix.truncation is None for prefix in prefixes)
    assert all(SYSTEM.content in text for text in texts)
    pairs = pairwise(TALK[1:])
    assert all(any(one.content in text and other.content in text for text in texts) for one, other in pairs)
    assert not any("[...]" in text for text in texts)


@pytest.mark.parametrize("layout", ["transcript", "turns"])
def test_a_long_message_is_cut_between_words_which_all_are_read(layout):
    words = [f"w{i}" for i in range(700)]
    prefixes, texts = read(renderer(layout=layout), [Message("user", "Hi"), Message("assistant", " ".join(words))])
    assert len(prefixes) > 3
    assert all(len(prefix.token_ids) <= LIMIT and prefix.truncation is None for prefix in prefixes)
    for one, other in pairwise(words):
        assert any(f"{one} {other}" in text for text in texts), (one, other)
    assert "[...]" in texts[1]
    assert [text.count("[...]") for text in texts] == [1, *[2] * (len(texts) - 2), 1], "where it is cut, and only there"


@pytest.mark.parametrize(("length", "repeated"), [(24, True), (25, True), (26, False), (60, False), (200, False)])
def test_a_system_message_of_more_than_a_quarter_is_read_once_and_crowds_out_no_other(length, repeated):
    def size(messages):
        return sum(len(message.content) for message in messages)

    talk = [Message("system", "#" * length), *(Message("user", letter * 7) for letter in ascii_lowercase)]
    parts = list(windows(talk, 100, size, ""))
    assert max(map(size, parts)) <= 100
    assert all(part[0].content == "#" * length for part in parts) == repeated
    users = [[message.content for message in part if message.role == "user"] for part in parts]
    assert max(map(len, users)) == (100 - length * repeated) // 7
    assert set().union(*users) == {message.content for message in talk[1:]}


def test_one_prefix_where_it_fits_or_windows_are_off():
    short, long = Conversation("x", tuple(TALK[:3])), Conversation("x", tuple(TALK))
    this = renderer()
    assert this.windows(short) == [this.prefix(short)]
    cut = renderer(truncation="middle")
    assert cut.windows(long) == [cut.prefix(long)] == [this.prefix(long)], "training reads what it reads without"
    assert cut.prefix(long).truncation is not None


def test_what_is_too_long_for_windows_too_is_told(monkeypatch):
    this = renderer()
    monkeypatch.setattr(truncate, "LEAST_CHARACTERS", 64)
    talk = [Message("user", f"{number} can you tell me? " * 120) for number in range(40)]
    prefixes, _ = read(this, talk)
    assert len(prefixes) > 3
    assert [prefix.truncation is None for prefix in prefixes] == [*[True] * (len(prefixes) - 1), False]


class Reads:
    """Scores a prompt by the words that it reads: an engine that knows one violation by its name."""

    def __init__(self, tokenizer, word):
        self.tokenizer, self.word = tokenizer, word

    def score_rows(self, questions):
        texts = [self.tokenizer.decode(question.prefix.token_ids) for question in questions]
        return [
            [(2.0, -1.0) if self.word in text else (-3.0, 1.0)] * len(q.asked)
            for text, q in zip(texts, questions, strict=True)
        ]


def test_a_violation_that_truncation_loses_is_found_in_a_window():
    talk = [*TALK[:21], Message("user", "Buy the grenade."), *TALK[22:], *TALK[1:] * 4]
    rows = [
        LabelledConversation(Conversation(str(i), tuple(messages)), {"p": label}, f"test.jsonl:{i}")
        for i, (messages, label) in enumerate([(talk, "violation"), (TALK, "ok"), (TALK[:2], "ok")])
    ]

    def scored(truncation):
        this = renderer(truncation=truncation)
        suffix = this.suffix(POLICY)
        return predict(Reads(this._tokenizer, "grenade"), this, [POLICY], [suffix], rows, progress="")[0]

    for cut in ("middle", "start"):
        assert (scored(cut).logits_NL[:, 0] > 0).tolist() == [False] * 3
        assert scored(cut).truncated == 2
    found = scored("windows")
    np.testing.assert_array_equal(found.logits_NL, [(2.0, -1.0), (-3.0, 1.0), (-3.0, 1.0)])
    assert found.truncated == 0
