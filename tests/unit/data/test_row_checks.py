"""Findings about rows, each with rows that have the fault and rows that do not."""

import pytest

from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.data.row_checks import ERROR, WARNING, check_balance, check_duplicates, check_roles, check_turns
from alora.policy import Policy

POLICY = Policy("p", "Title", "Rule")


def row(text, label="ok", where="train.jsonl:1", role="user"):
    return LabelledConversation(Conversation(where, (Message(role, text),)), {"p": label}, where)


def both(count):
    return [row(f"{label} {i * 'a'}", label) for label in POLICY.labels for i in range(count)]


@pytest.mark.parametrize("needed", [True, False])
def test_a_split_of_one_class(needed):
    (finding,) = check_balance("train", [row("a")] * 30, POLICY, needed)
    assert finding.severity == (ERROR if needed else WARNING)
    assert finding.code == "LABEL_ABSENT"


def test_few_rows_and_rare_labels_are_doubtful():
    assert not check_balance("train", both(8), POLICY, True)
    assert [f.severity for f in check_balance("train", both(7), POLICY, True)] == [WARNING] * 2
    assert [f.code for f in check_balance("train", both(1), POLICY, True)] == ["FEW_ROWS", "FEW_ROWS", "TOO_FEW_ROWS"]
    rare = [row(f"{i}") for i in range(400)] + [row(f"{i}", "violation") for i in range(9)]
    assert "only 9 of 409 rows are 'violation'" in check_balance("train", rare, POLICY, True)[0].problem


def test_a_pair_with_two_labels_is_told_once():
    (finding,) = check_duplicates({"train": [row("a"), row("a", "violation", "train.jsonl:2")]}, POLICY)
    assert finding.code == "TWO_LABELS"


def test_near_leakage_is_told_apart_from_leakage():
    splits = {"train": [row("order 12, please!")], "test": [row(f"order {n} please") for n in (345, 6, 7)]}
    (finding,) = check_duplicates(splits, POLICY)
    assert "3 of its 3 rows differ from one in train in digits and punctuation only" in finding.problem
    splits["test"].append(row("Order 12, please!"))
    found = {finding.code: finding.problem[:8] for finding in check_duplicates(splits, POLICY)}
    assert found == {"LEAK": "1 of its", "NEAR_LEAK": "3 of its"}


def test_rows_that_no_policy_has_on_both_sides_are_no_leak():
    def labelled(text, **labels):
        return LabelledConversation(Conversation("x", (Message("user", text),)), labels, "f:1", "g")

    others = (POLICY, Policy("q", "Title", "Rule"))
    splits = {"train": [labelled("a", q="ok")], "validation": [labelled("a", p="ok")]}
    assert check_duplicates(splits, *others) == []
    splits["validation"].append(labelled("a", q="ok"))
    assert {finding.code for finding in check_duplicates(splits, *others)} == {"DUPLICATES", "LEAK", "GROUP_LEAK"}


@pytest.mark.parametrize(
    "text", ["Agent: hello\nCustomer: {}", "एजेंट: a\n**ग्राहक**: {}", "<Agent>hello</Agent>\n<User>{}</User>"]
)
def test_rows_of_one_message_that_reads_as_a_transcript_are_doubtful(text):
    chats = [row(text.format(n), where=f"train.jsonl:{n}") for n in range(3)]
    (finding,) = check_turns({"train": [*chats, row("hello")]})
    assert (finding.severity, finding.code, finding.where) == (WARNING, "TRANSCRIPT", "train")
    assert check_turns({"train": [*chats, *[row("hello")] * 9]}) == []


def test_a_speaker_that_no_turn_has_is_doubtful():
    assert check_roles({"Bot": "assistant", "user": "user", "*": "user"}, ["role 'Bot' is read as assistant"]) == []
    (finding,) = check_roles({"Bott": "assistant"}, ["role 'Bot' is read as assistant"])
    assert (finding.severity, finding.code) == (WARNING, "ROLE_UNUSED")
    assert "'Bott'" in finding.problem
