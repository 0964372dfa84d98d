"""Findings about rows, each with rows that have the fault and rows that do not."""

from dataclasses import replace

import pytest

from alora.data.check import ERROR, WARNING, check_balance, check_duplicates, check_turns, check_unsplit
from alora.data.conversation import Conversation, LabelledConversation, Message
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
    assert "no row is labelled 'violation'" in finding.problem


def test_few_rows_and_rare_labels_are_doubtful():
    assert not check_balance("train", both(8), POLICY, True)
    assert [f.severity for f in check_balance("train", both(7), POLICY, True)] == [WARNING] * 2
    rare = [row(f"{i}") for i in range(400)] + [row(f"{i}", "violation") for i in range(9)]
    assert "only 9 of 409 rows are 'violation'" in check_balance("train", rare, POLICY, True)[0].problem


def test_training_rows_too_few_for_anything():
    assert [f.severity for f in check_balance("train", both(1), POLICY, True)] == [WARNING, WARNING, ERROR]
    assert [f.severity for f in check_balance("train", both(2), POLICY, True)] == [WARNING, WARNING]
    assert [f.code for f in check_balance("train", both(1), POLICY, True)] == ["FEW_ROWS", "FEW_ROWS", "TOO_FEW_ROWS"]


def test_sound_splits_have_no_findings():
    splits = {"train": both(9), "test": [row("something else", where="test.jsonl:1")]}
    assert check_duplicates(splits, POLICY) == []


def test_a_repeated_row_is_told_with_both_places():
    rows = [row("Hello  there"), row("hello there ", where="train.jsonl:9"), row("hello there", role="assistant")]
    (finding,) = check_duplicates({"train": rows}, POLICY)
    assert (finding.severity, finding.where) == (WARNING, "train")
    assert "1 of 3 rows repeat another row's conversation (train.jsonl:1 = train.jsonl:9)" in finding.problem


def test_a_row_with_two_labels():
    findings = check_duplicates({"train": [row("a")], "validation": [row("a", "violation", "v.jsonl:2")]}, POLICY)
    assert any("1 conversations have two different labels (train.jsonl:1 = v.jsonl:2)" in f.problem for f in findings)


def test_a_pair_with_two_labels_is_told_once():
    (finding,) = check_duplicates({"train": [row("a"), row("a", "violation", "train.jsonl:2")]}, POLICY)
    assert finding.code == "TWO_LABELS"


def test_leakage_between_splits():
    splits = {
        "train": [row("a"), row("b")],
        "validation": [row("c")],
        "test": [row("A ", where="test.jsonl:3"), row("d")],
    }
    (finding,) = check_duplicates(splits, POLICY)
    assert (finding.severity, finding.where) == (WARNING, "test")
    assert "1 of its 2 rows are also in train (test.jsonl:3 = train.jsonl:1)" in finding.problem


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


def test_rows_that_read_as_transcripts_are_doubtful():
    chats = [row(f"Agent: hello\nCustomer: {i}\nhttp://a.b/c") for i in range(3)]
    (finding,) = check_turns({"train": [*chats, row("hello")]})
    assert (finding.severity, finding.code, finding.where) == (WARNING, "TRANSCRIPT", "train")
    assert "data.role_map={Agent: ROLE, Customer: user}" in finding.problem
    (three,) = check_turns({"train": [row(f"Agent: hello\nBot: wait\nCustomer: {i}") for i in range(3)]})
    assert "data.role_map={Agent: ROLE, Bot: assistant, Customer: user}" in three.problem
    for cut in ("<br>", "<BR />", "\r", "\x0b", "\u2028"):
        assert check_turns({"train": [row(f"Agent: hello{cut}Customer: {i}{cut}http://a.b") for i in range(3)]}) == [
            finding
        ]
    for stamp in ("[10:00] ", "(10:00) ", "10:00:05 ", "2024-05-01 10:00 ", "[2024-05-01T10:00Z] "):
        stamped = [row(f"{stamp}Agent: hello\n{stamp}Customer: {i}\n{stamp}http://a.b") for i in range(3)]
        assert check_turns({"train": stamped}) == [finding]
    for mark, colon in (("### ", ":"), ("**", ":**"), ("_", "_:"), ("> ", ":"), ("", "："), ("", " :")):
        marked = [row(f"{mark}Agent{colon} hello\n{mark}Customer{colon} {i}") for i in range(3)]
        assert check_turns({"train": marked}) == [finding]
    assert check_turns({"train": [row(f"- Product: kettle\n- Agent: none\n- State: {i}") for i in range(3)]}) == []
    assert check_turns({"train": [row("2024-05-01 10:00 in\n2024-05-01 11:00 out")]}) == []
    turns = LabelledConversation(Conversation("t", (Message("user", "Agent: a\nCustomer: b"),) * 2))
    for rows in ([], [turns], [row("Re: a"), row("b: c")], [*chats, *[row("hello")] * 9]):
        assert check_turns({"train": rows}) == []


NAMES = ["Ann", "Bob", "Cid", "Dan", "Eve"]


@pytest.mark.parametrize("speaker", ["Agent", "Visitor", "", "Support"])
def test_transcripts_whose_speakers_differ_from_row_to_row_are_doubtful(speaker):
    """A customer's own name in each, or an agent's; no map of speakers has them."""
    chats = [f"{speaker or name}: hello\n{name} Lee: it broke" for name in NAMES]
    rows = [row(text) for text in chats]
    (finding,) = check_turns({"train": [*rows, *[row("a")] * 14]})
    assert (finding.severity, finding.code) == (WARNING, "TRANSCRIPT")
    assert f"several speakers, others in each, such as '{speaker or 'Ann'}'" in finding.problem
    assert "gather a conversation's turns into messages" in finding.problem
    assert "data.role_map={" not in finding.problem
    assert check_turns({"train": [*rows, *[row("a")] * 15]}) == []
    assert check_turns({"train": [row(f"{speaker or name}: hello\n{speaker or name}: again") for name in NAMES]}) == []
    said = [row(f"{name}: a\nIt is as I said before: b") for name in NAMES]
    assert check_turns({"train": said}) == []
    asked = [(Message("user", text), Message("assistant", "Yes")) for text in chats]
    columns = [LabelledConversation(Conversation("c", messages, by_column=True), where="f:1") for messages in asked]
    replying = [finding.code for finding in check_turns({"train": columns})]
    assert replying == (["TRANSCRIPT"] if speaker in ("Agent", "Support") else [])  # a form has such lines as well


@pytest.mark.parametrize(("agent", "customer"), [("एजेंट", "ग्राहक"), ("ตัวแทน", "ลูกค้า"), ("Đại diện", "Kha\u0301ch")])
def test_letters_of_several_characters_are_of_a_name(agent, customer):
    (finding,) = check_turns({"train": [row(f"{agent}: a\n**{customer}**: {i}") for i in range(3)]})
    assert f"{customer}: ROLE" in finding.problem


def test_transcripts_are_told_of_every_split_file_and_policy():
    chats = [row(f"Agent: hello\nCustomer: {i}", where=f"chats.jsonl:{i}") for i in range(9)]
    plain = [row("hello", where=f"plain.jsonl:{i}") for i in range(90)]
    for splits, where in (
        ({"train": plain, "validation": chats}, "validation"),
        ({"train": plain, "test": chats}, "test"),
        ({"train": [*plain, *chats], "test": plain}, "train"),
        ({"train": [*chats, *plain], "validation": chats}, "train, validation"),
    ):
        (finding,) = check_turns(splits)
        assert (finding.where, "chats.jsonl:0" in finding.problem) == (where, True)
    both = {"train": [replace(item, labels={"p": "ok"}) for item in chats], "validation": chats[:2]}
    assert check_turns(both)[0].problem.startswith("9 rows are one")  # each once
    shared = [replace(item, where=f"plain.jsonl:{i}") for i, item in enumerate(chats)]
    assert check_turns({"train": [*plain, *shared]}) == []
    (finding,) = check_turns({"train": [*plain, *(replace(item, labels={"q": "ok"}) for item in shared)]})
    assert finding.problem.startswith("9 rows are one message with lines of 'Agent:' and 'Customer:' (plain.jsonl:0)")


def test_transcripts_in_the_first_of_two_columns_are_doubtful_and_no_role_map_is_offered():
    def columns(asked, unsplit=(), system=()):
        messages = (*system, Message("user", asked), Message("assistant", "Yes"))
        return LabelledConversation(Conversation("c", messages, unsplit, by_column=True), where="f:1")

    chat, system = "Human: hello\n\nAssistant: hi\n\nHuman: now?", (Message("system", "Be kind"),)
    (finding,) = check_turns({"train": [columns(chat), columns(chat, system=system), row("hello")]})
    assert (finding.code, finding.where) == ("TRANSCRIPT", "train")
    assert "lines of 'Assistant:' and 'Human:' in their first text column" in finding.problem
    assert (
        "gather a conversation's turns into messages, or into one text where a line with its speaker opens"
        in finding.problem
    )
    assert "data.role_map={" not in finding.problem
    asked = (Message("user", "Support Ann: a\nClient: b"), Message("user", "Why?"), Message("assistant", "So"))
    three = LabelledConversation(Conversation("t", asked, by_column=True))
    assert "lines of 'Client:' and 'Support Ann:'" in check_turns({"train": [three]})[0].problem
    form = "Context: a\nUser: b\nQuestion: c"
    for rows in (
        [columns(form)],
        [columns("hello")],
        [columns(chat), *[columns("hello")] * 3],
        [columns(chat, ("A",))],
    ):
        assert check_turns({"train": rows}) == []
    other = LabelledConversation(Conversation("o", (Message("user", chat),), ("Human",)))
    one, two = check_unsplit("train", [other, columns(chat, ("Assistant",))])
    assert "put line breaks before" in one.problem
    assert two.problem.startswith("1 of 2 rows have 'Assistant:' within a message: a text next to others of its row is")
    assert (
        "gather a conversation's turns into messages, or into one text where a line with its speaker opens"
        in two.problem
    )
    assert "put line breaks" not in two.problem
