"""Rows of one conversation stay together, whatever split they are put in."""

from alora.conversation import Conversation, LabelledConversation, Message
from alora.splits import hold_out, merge_rows, text_digest


def _row(text: str, where: str = "", **labels: str) -> LabelledConversation:
    return LabelledConversation(Conversation(where, (Message("user", text),)), labels, where)


def test_what_reads_the_same_is_held_out_together():
    rows = [_row(text) for number in range(200) for text in (f"Where is {number}?", f" where  is\n{number}? ")]
    train, validation = hold_out(rows, 0.3)
    for side in (train, validation):
        digests = [text_digest(row.conversation) for row in side]
        assert all(digests.count(digest) == 2 for digest in digests)
    assert 80 < len(validation) < 160
    assert len(train) + len(validation) == 400


def test_a_new_row_moves_no_other():
    rows = [_row(f"row {number}") for number in range(100)]
    assert [row for row in hold_out([_row("new"), *rows], 0.3)[1] if row in rows] == hold_out(rows, 0.3)[1]


def test_of_two_labels_for_one_policy_the_first_stays():
    rows = [_row("a", "1", red="ok"), _row("b", "2", red="ok"), _row("a", "3", red="violation", blue="ok")]
    merged = merge_rows(rows)
    assert [(row.conversation, row.where) for row in merged] == [
        (rows[0].conversation, "1"),
        (rows[1].conversation, "2"),
    ]
    assert merged[0].labels == {"red": "ok", "blue": "ok"}
