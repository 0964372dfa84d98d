"""Cutting turns to a budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alora.config.schema import PromptSettings
from alora.data.conversation import Conversation, Message
from alora.data.messages import ToolCall
from alora.prompt.render import Renderer
from alora.prompt.truncate import LEAST_CHARACTERS, Turn, bounded, fit
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


def test_a_turn_cut_through_shows_the_marker_once():
    (turn,) = fit([Turn("user", tuple(range(100)), 3, kept=True)], 40, "middle", MARKER)
    assert turn.token_ids[:5] == (0, 1, 2, 3, 4)
    assert turn.token_ids[-2:] == (98, 99)
    assert turn.token_ids.count(MARKER[0]) == 1


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
