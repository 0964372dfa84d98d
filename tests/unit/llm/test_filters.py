"""Near-duplicates: those that a look at every pair of rows finds, and no others."""

import random

import pytest

from alora.data.conversation import Conversation, Message
from alora.llm.filters import leak, near_duplicates
from alora.llm.minimal_pairs import Case
from alora.policy import Policy

OPENING = "you are a helpful assistant of a shop that sells lamps and chairs"


def talk(name: str, words: list[str]) -> Conversation:
    return Conversation(name, (Message("system", OPENING), Message("user", " ".join(words))))


def triples(conversation: Conversation) -> set[tuple[str, ...]]:
    words = " ".join(message.text for message in conversation.messages).split()
    return {tuple(words[place : place + 3]) for place in range(len(words) - 2)}


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_copies_are_those_that_a_look_at_every_pair_finds(similarity):
    draw = random.Random(0)
    said = [[draw.choice("abcdefghij") for _ in range(30)] for _ in range(20)]
    said += [[word if draw.random() < 0.98 else "x" for word in said[number % 20]] for number in range(60)]
    rows = [talk(str(number), words) for number, words in enumerate(said)]
    groups = [str(number // 2) for number in range(len(rows))]
    tested, mine = rows[:5], rows[5:]
    known, expected = [(row, "") for row in tested], {}
    for number, (row, group) in enumerate(zip(mine, groups, strict=False)):
        shares = [
            (other.id, len(triples(row) & triples(other)) / len(triples(row) | triples(other)))
            for other, owner in known
            if owner != group
        ]
        if copies := [name for name, share in shares if share >= similarity]:
            expected[number] = copies[0]
        else:
            known.append((row, group))
    assert 0 < len(expected) < len(mine)
    assert near_duplicates(mine, groups[: len(mine)], similarity, tested) == expected


def test_copies_in_a_script_without_spaces_are_found():
    said = "我的包裹上周就该到了但是到现在还没有送到请你帮我查一下它在哪里"
    rows = [Conversation(str(number), (Message("user", f"{said}{end}"),)) for number, end in enumerate("一二三")]
    assert near_duplicates(rows, ["a", "b", "c"], 0.7) == {1: "0", 2: "0"}


def case(reply: str, asked: str = "Where is it?") -> Case:
    talk = Conversation("x", (Message("user", asked), Message("assistant", reply)))
    return Case("pair", talk, "ok", {}, "ok", {}, 1, "m", "", 0.0)


def rule(title: str, name: str = "a", labels: tuple[str, ...] = ("violation", "ok"), text: str = "No money back."):
    return Policy(id=name, title=title, rule=text, labels=labels)


@pytest.mark.parametrize(
    ("policy", "reply"),
    [
        (rule("No refund promises!"), 'We have "no refund promises" here.'),
        (rule("No refund promises!"), "No refund promises! That is it."),
        (rule("不得承诺退款"), "我们不得承诺退款的。"),
        (rule("Refunds"), "One of the violations."),
        (rule("Refunds", "no_refunds"), "See no_refunds."),
        (rule("Refunds", labels=("bad", "not_bad")), "It is not_bad."),
    ],
)
def test_what_gives_the_label_away_is_found(policy, reply):
    assert leak(case(reply), policy)


@pytest.mark.parametrize(
    ("policy", "reply"),
    [
        (rule("Parcel"), "Your parcel is late."),
        (rule("Refunds", "lamp"), "The lamp is late."),
        (rule("Refunds", labels=("violation", "allowed")), "You are allowed to ask."),
        (rule("Off topic", "off_topic"), "Sorry, that is off topic for me."),
        (rule("Refunds", labels=("refund", "other"), text="It promises a refund."), "You get a refund."),
    ],
)
def test_everyday_words_give_nothing_away(policy, reply):
    assert leak(case(reply), policy) is None


def test_what_both_sides_of_a_pair_hold_gives_nothing_away():
    sides = [case(reply, "Is that a violation?") for reply in ("You get it.", "I ask.")]
    assert leak(sides[0], rule("Refunds"), sides) is None
    assert leak(sides[0], rule("Refunds"), [sides[0], case("I ask.")]) == "violation"
