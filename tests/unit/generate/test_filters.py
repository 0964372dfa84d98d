"""Near-duplicates: those that a look at every pair of rows finds, and no others."""

import random

import pytest

from alora.data.conversation import Conversation, Message
from alora.generate.filters import near_duplicates

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
