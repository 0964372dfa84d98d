"""Cutting turns to a budget; and windows, in which all of a long conversation is read."""

from dataclasses import replace
from itertools import pairwise
from string import ascii_lowercase

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.messages import ToolCall
from alora.evaluation.predict import predict
from alora.policy import Policy
from alora.prompt import truncate
from alora.prompt.render import Renderer
from alora.prompt.truncate import LEAST_CHARACTERS, Turn, bounded, fit, windows
from tests.toy_tokenizers import toy_tokenizer

MARKER = (-1, -2)
TURNS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5)).map(lambda n: Turn("user", tuple(range(1, n[0] + 1)), n[1])),
    min_size=1,
    max_size=8,
)


def plain(turns):
    return [index for turn in turns for index in turn.token_ids if index > 0]


@given(TURNS, st.integers(17, 120), st.sampled_from(["middle", "start"]))
def test_a_cut_keeps_the_ends_in_order_within_the_budget(turns, budget, taken_from):
    cut = fit(turns, budget, taken_from, MARKER)
    cost = sum(turn.cost for turn in turns)
    if cost <= budget:
        assert cut == turns
        return
    assert sum(turn.cost for turn in cut) <= budget
    assert any(MARKER[0] in turn.token_ids for turn in cut)
    whole, kept = plain(turns), plain(cut)
    tail = next(n for n in range(len(kept), -1, -1) if kept[len(kept) - n :] == whole[len(whole) - n :])
    head = kept[: len(kept) - tail]
    assert head == whole[: len(head)]
    if taken_from == "start":
        assert not head


def test_a_system_text_that_goes_leaves_a_marker_in_its_turn():
    turns = [Turn("system", tuple(range(50)), kept=True), Turn("user", tuple(range(50)), 4)]
    cut = fit(turns, 40, "start", MARKER)
    assert cut[0] == Turn("system", MARKER, kept=True)
    assert cut[1].token_ids[:2] == MARKER


def texts(*contents):
    return tuple(Message("user", content) for content in contents)


def test_a_conversation_up_to_the_bound_is_left_as_it_is():
    room = LEAST_CHARACTERS
    for held in (texts("x" * (2 * room - 8)), texts(*["y" * 92] * (2 * room // 100)), texts("", "a")):
        assert bounded(held, 100, "|") is held
    assert bounded(texts("x" * 2 * room), 100, "|") != texts("x" * 2 * room)
    longer = texts("x" * (2 * 64 * 9000 - 8))
    assert bounded(longer, 9000, "|") is longer, "the bound grows with the prefix"


@pytest.mark.parametrize(
    "lengths", [(10**7,), (5, 10**7, 6), (10**6, 10**6), (10**6, 3, 10**6), (9,) * 70_000, (1, *[3 * 10**5] * 9)]
)
def test_beyond_the_bound_both_ends_stay_in_order(lengths):
    held = texts(*(f"{number}:{'x' * length}:{number}" for number, length in enumerate(lengths)))
    kept = bounded(held, 100, "|")
    whole, short = "\n".join(m.content for m in held), "\n".join(m.content for m in kept)
    before, _, after = short.partition("|")
    assert whole.startswith(before)
    assert whole.endswith(after.removeprefix("\n"))
    for end in (before, after):
        assert 0.45 * LEAST_CHARACTERS < len(end) <= LEAST_CHARACTERS


@pytest.mark.parametrize(
    "more", [{"calls": (ToolCall("pay", "x" * 10**7),)}, {"name": "x" * 10**7}], ids=["call", "name"]
)
@pytest.mark.parametrize("around", [(), texts("a" * 500)], ids=["alone", "between"])
def test_calls_and_names_count_towards_the_bound(more, around):
    """They are tokenised as the text is."""
    kept = bounded((*around, Message("assistant", "said", **more), *around), 100, "|")
    assert sum(len(message.name) + len(message.text) for message in kept) < 4 * LEAST_CHARACTERS
    assert kept[: len(around)] == kept[len(kept) - len(around) :] == around


@pytest.mark.parametrize("layout", ["turns", "transcript"])
def test_what_stands_behind_a_folded_system_text_counts_towards_the_limit(layout):
    renderer = Renderer(toy_tokenizer("gemma3"), PromptSettings(layout=layout, max_prefix_tokens=200))
    renderer._template = replace(renderer._template, folded_system="- " * 30)
    prefix = renderer.prefix(Conversation("a", (Message("system", "Sys " * 200), Message("user", "word " * 400))))
    assert prefix.truncation is not None
    assert len(prefix.token_ids) <= 200


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
