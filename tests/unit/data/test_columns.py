"""Which columns of a row are read, found or named."""

import csv
import itertools
import json
import math
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.columns import find_columns, holds_rows
from alora.data.conversation import Message, Rejected, read_conversation, stream_conversations
from alora.data.labelled import read_labelled, read_multilabelled
from alora.data.messages import conversation_of
from alora.errors import DataError
from alora.findings import Findings
from alora.policy import Policy
from tests.unit.data.rows import POLICY, SPOKEN_BY, TURNS, jsonl, read, read_one, roles, row, streamed


def test_columns_and_labels_are_mapped(tmp_path):
    path = jsonl(tmp_path, {"chat": row()["messages"], "y": 1, "key": "k"}, {"chat": row()["messages"], "y": False})
    columns = ColumnSettings(messages="chat", label="y", id="key")
    rows = read(path, columns=columns, label_map={"1": "violation", "false": "ok"})
    assert [item.labels["p"] for item in rows] == ["violation", "ok"]
    assert rows[0].conversation.id == "k"


def test_what_later_rows_alone_have_next_to_detected_texts_is_noted(tmp_path):
    plain = {"question": "Why?", "answer": "So."}
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    found = "messages are read from data.columns.messages=question,answer"
    streamed(path, plain | {"context": "Docs."}, plain, plain | {"context": "Docs."}, notes=notes)
    assert notes == {found: 1, "'context' is not read: data.columns.messages names no such turn": 1}
    notes.clear()
    late = [*[plain] * 60, plain | {"context": "Docs."}, plain, plain | {"context": "Docs."}]
    assert streamed(path, *late, notes=notes) == [["user", "assistant"]] * 63
    assert notes == {found: 1, "'context' is not read: data.columns.messages names no such turn": 1}
    notes.clear()
    streamed(path, *late, notes=notes, messages="question,answer")
    assert not notes


def test_a_row_may_leave_out_a_text_column_in_which_it_has_nothing(tmp_path):
    asked, both = {"prompt": "Hi"}, {"prompt": "Hi", "response": "Ho"}
    path, whole = tmp_path / "rows.jsonl", ["user", "assistant"]
    for columns in ({}, {"messages": "prompt,response"}):
        for lines, read_as in (([asked, both], [["user"], whole]), ([both, asked], [whole, ["user"]])):
            notes = Counter[str]()
            assert streamed(path, *lines, notes=notes, **columns) == read_as
            assert notes["nothing is in column 'response', so the row has a message less"] == 1
    assert streamed(path, {"id": 1}, asked, both) == ["COLUMN_MISSING", ["user"], whole]
    labelled = [both | {"answer": "no"}, asked | {"answer": "ok", "completion": None}]
    assert streamed(path, *labelled, label="answer") == [whole, ["user"]]
    kind = {"system": "Be kind."}
    assert streamed(path, both, both | kind, both) == [whole, ["system", *whole], whole]
    assert streamed(path, both, {"x": 1}, {"response": "Ho"}) == [whole, "COLUMN_MISSING", ["assistant"]]
    assert streamed(path, row(), asked, both)[0] == ["user"]
    assert streamed(path, both, asked | {"conversation": "c2"}, {"conversation": "c3"}) == [
        whole,
        ["user"],
        "COLUMN_MISSING",
    ]
    array = tmp_path / "rows.json"
    array.write_text(json.dumps([asked, both]))
    assert holds_rows(str(array), DataSettings())
    assert holds_rows(str(array), DataSettings(columns=ColumnSettings(messages="context,prompt,response")))


def test_a_row_with_another_reply_than_the_one_found_loses_none(tmp_path):
    alpaca, dolly = {"instruction": "Hi", "output": "Ho"}, {"instruction": "Hi", "response": "Hey"}
    path, whole = tmp_path / "rows.jsonl", ["user", "assistant"]
    asked_for = ["COLUMN_MISSING"] * 2
    assert streamed(path, alpaca, dolly) == asked_for
    assert streamed(path, alpaca, dolly, messages="instruction,output") == [whole, "COLUMN_MISSING"]
    assert streamed(path, {"prompt": "Hi", "response": "Ho"}, {"prompt": "a", "completion": "b"}) == asked_for
    assert streamed(path, {"prompt": "a", "completion": "b"}, {"instruction": "Hi", "response": "Ho"}) == asked_for
    assert streamed(path, {"user": "Hi"}, {"assistant": "Ho"}) == ["COLUMN_MISSING"] * 2
    with pytest.raises(DataError, match="COLUMN_MISSING"):
        streamed(path, {"prompt": "Hi", "note": "x"}, messages="prompt,response")


def test_a_text_column_that_no_row_has_is_misspelt(tmp_path):
    both = {"prompt": "Hi", "response": "Ho"}
    wrong = "no column 'respnse' in any row; there are 'prompt', 'response'; correct data.columns.messages, or add"
    with pytest.raises(DataError, match=rf"rows\.jsonl: {wrong}"):
        streamed(tmp_path / "rows.jsonl", both, both, messages="prompt,respnse")
    (tmp_path / "one.json").write_text(json.dumps(both))
    with pytest.raises(DataError, match=rf"one\.json: {wrong}"):
        read_conversation(str(tmp_path / "one.json"), DataSettings(columns=ColumnSettings(messages="prompt,respnse")))
    with pytest.raises(DataError, match=f"rows.jsonl: {wrong}"):
        read(str(tmp_path / "rows.jsonl"), columns=ColumnSettings(messages="prompt,respnse"))


@pytest.mark.parametrize("name", ["messages", "conversations", "dialogue"])
def test_a_row_whose_only_column_is_empty_can_be_left_out(name, tmp_path):
    column = ColumnSettings.messages if name == "conversations" else name
    rows = [{name: row()["messages"], "label": "ok"}, *({name: text, "label": "ok"} for text in (None, "", " \n", []))]
    path = jsonl(tmp_path, *rows)
    assert len(read(path, columns=ColumnSettings(messages=column), skip_empty=True)) == 1
    with pytest.raises(DataError) as caught:
        read(path, columns=ColumnSettings(messages=column))
    assert {finding.code for finding in caught.value.findings} == {"EMPTY"}


def test_plain_text_columns_become_turns(tmp_path):
    path = jsonl(tmp_path, {"prompt": "Hi", "response": "Hello", "label": "ok"})
    (found,) = read(path, columns=ColumnSettings(messages="prompt,response"))
    assert found.conversation.messages == (Message("user", "Hi"), Message("assistant", "Hello"))


def own(text, label=None, **more):
    """A row as ``alora label`` writes it, with what somebody filled in."""
    said = {"why": "uncertain", "label": "ok", "probability": 0.5}
    messages = [{"role": "user", "content": text}]
    return {"id": f"log.jsonl:{text}", "messages": messages, "labels": {"p": label}, "verdicts": {"p": said}, **more}


NAMED = [
    {"messages": "asked,told", "label": "promised"},
    {"messages": "asked,told", "label": "promised", "labels": "gold", "id": "ticket", "group": "shop"},
    {"messages": "asked,told", "label": "%policy%"},
    {"messages": "asked,told", "labels": "gold"},
]


@pytest.mark.parametrize("named", NAMED)
def test_rows_of_alora_label_are_read_whatever_columns_are_named(tmp_path, named):
    theirs = {"asked": "a", "told": "b", "promised": "ok", "gold": {"p": "ok"}, "p": "ok", "ticket": "t", "shop": "s"}
    chats = jsonl(tmp_path, theirs, name="chats.jsonl")
    labelled = jsonl(tmp_path, own("c", "violation"), own("d"), own("e", "ok"), name="labelled.jsonl")
    mixed = jsonl(tmp_path, own("f", "violation"), theirs | {"ticket": "u"}, own("g", "ok"), name="mixed.jsonl")
    settings, findings = DataSettings(columns=ColumnSettings(**named)), Findings()
    for source, texts in ((labelled, "ce"), ([chats, labelled], "ace"), ([labelled, mixed, chats], "cefaga")):
        rows = read_labelled(source, settings, POLICY, findings)
        assert "".join(item.conversation.messages[0].content for item in rows) == texts
        assert [item.labels["p"] for item in rows] == ["violation" if text in "cf" else "ok" for text in texts]
        assert [item.conversation.id for item in rows if item.conversation.messages[0].content == "c"] == [
            "log.jsonl:c"
        ]
        assert {item.group for item in rows} == ({"", "s"} if "group" in named and texts != "ce" else {""})
    ungrouped = ", and is of no group of data.columns.group" if "group" in named else ""
    assert findings.notes[f"a row of alora label is read by its own columns{ungrouped}"] == 11


@pytest.mark.parametrize(
    ("other", "named", "complaint"),
    [
        ({"verdicts": None}, NAMED[0], "no column 'asked'"),
        ({"labels": "ok"}, NAMED[0], "no column 'asked'"),
        ({"messages": "Hi"}, NAMED[0], "no column 'asked'"),
        ({"verdicts": ["p"]}, {"label": "promised"}, "no column 'promised'"),
        ({"labels": None}, {"label": "%policy%"}, "no column 'p'"),
        ({"verdicts": "p"}, {"group": "shop"}, "no column 'shop'"),
    ],
)
def test_other_rows_without_the_columns_that_are_named_are_wrong(tmp_path, other, named, complaint):
    path = jsonl(tmp_path, own("a", "ok"), own("b", "ok") | other)
    with pytest.raises(DataError, match="problem") as caught:
        read(path, columns=ColumnSettings(**named))
    assert caught.value.findings[0].where == "train.jsonl:2"
    assert complaint in caught.value.findings[0].problem


def test_a_row_of_alora_label_that_has_the_columns_that_are_named_is_read_by_them(tmp_path):
    more = {"asked": "x", "told": "y", "promised": "violation", "p": "violation", "gold": {"p": "violation"}}
    for named in NAMED:
        named = {key: name for key, name in named.items() if key not in ("id", "group")}
        (found,) = read(jsonl(tmp_path, own("a", "ok", **more)), columns=ColumnSettings(**named))
        assert (found.conversation.messages[0].content, found.labels) == ("x", {"p": "violation"})


@pytest.mark.parametrize("named", NAMED)
def test_rows_of_alora_generate_are_read_next_to_a_users_own(tmp_path, named):
    theirs = {"asked": "a", "told": "b", "promised": "ok", "gold": {"p": "ok"}, "p": "ok", "ticket": "t", "shop": "s"}
    made = [
        row(text, label) | {"pair": text, "generated": {"model": "m"}}
        for text, label in (("c", "violation"), ("d", "ok"))
    ]
    chats, generated = jsonl(tmp_path, theirs, name="chats.jsonl"), jsonl(tmp_path, *made, name="train.jsonl")
    rows = read_labelled([chats, generated], DataSettings(columns=ColumnSettings(**named)), POLICY)
    notes = Counter[str]()
    settings = DataSettings(columns=ColumnSettings(**named), role_map={"Agent": "assistant"})
    assert len([*stream_conversations(generated, settings, notes)]) == 2
    assert not [note for note in notes if note.startswith("no text")]
    assert [item.labels["p"] for item in rows] == ["ok", "violation", "ok"]
    assert [item.conversation.messages[0].content for item in rows] == ["a", "c", "d"]


def test_a_first_row_without_a_text_hides_no_other_column(tmp_path):
    settings = DataSettings(skip_empty=True)
    for first in ({"text": None}, {"text": None, "bot": None}, {"bot": "c"}):
        rows, notes = [first, {"text": "a", "bot": "b"}], Counter[str]()
        list(stream_conversations(jsonl(tmp_path, *rows), settings, notes))
        assert notes["'bot' is not read: data.columns.messages names no such turn"] == 1


def test_a_conversation_in_columns_of_other_names(tmp_path):
    def said(path, column):
        return read_conversation(str(path), DataSettings(columns=ColumnSettings(messages=column)))

    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"dialogue": row("Hi")["messages"], "prompt": "a", "response": "b"}))
    assert said(path, "dialogue").messages == (Message("user", "Hi"),)
    two = said(path, "prompt,response").messages
    assert two == (Message("user", "a"), Message("assistant", "b"))
    assert read_conversation(str(path)).messages == two
    path.write_text(json.dumps({"dialogue": row("Hi")["messages"]}))
    with pytest.raises(DataError, match=r"no column 'messages'.*set data\.columns\.messages=NAME"):
        read_conversation(str(path))
    path.write_text(json.dumps({"dialogue": row("Hi")["messages"], "messages": row("other")["messages"]}))
    assert said(path, "dialogue").messages == (Message("user", "Hi"),)
    path.write_text(json.dumps(row("Hi") | {"prompt": "Anna", "response": "Bob"}))
    for columns, unread in (("prompt,response", "'prompt', 'response'"), ("prompt", "'prompt'")):
        notes, named = Counter[str](), DataSettings(columns=ColumnSettings(messages=columns))
        assert read_conversation(str(path), named, notes).messages == (Message("user", "Hi"),)
        assert notes.pop(f"messages are read from 'messages', and not from {unread}") == 1
        assert not [note for note in notes if unread in note]
    for ids in ([], ["m1", "m2"]):
        path.write_text(json.dumps({"messages": ids, "prompt": "a", "response": "b"}))
        assert said(path, "prompt,response").messages == two
    path.write_text(json.dumps(row("Hi")))  # as it is without any setting, whatever the rows of the recipe are called
    assert said(path, "dialogue").messages == (Message("user", "Hi"),)


TURN = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([{"messages": [TURN]}], True),
        ([{"prompt": "Hi", "response": "Ho"}], True),
        ([{"conversations": [TURN]}, 3], True),
        ([TURN], False),
        ({"messages": [TURN]}, False),
        ([{"from": "human", "value": "Hi"}], False),
        ([{"speaker": "ann", "text": "Hi"}], False),
        ([{"content": "Hi"}], False),
        ([{"text": "Hi", "label": "ok", "id": "a"}], True),
        ([{"Prompt": "Hi"}, {"Prompt": "Ho"}], True),
        ([{"text": "Hi", "author": "ann"}], False),
        ([{"prompt": "Hi", "response": "Ho", "answer": "Hey"}], True),
        ([], False),
        (["Hi"], False),
    ],
)
def test_an_array_of_rows_is_told_from_one_conversation(tmp_path, content, wanted):
    path = tmp_path / "chats.json"
    for text in (json.dumps(content), "\ufeff " + json.dumps(content, indent=1)):
        path.write_text(text)
        assert holds_rows(str(path), DataSettings()) is wanted
    path.write_text(json.dumps([{"text": "Hi"}]))
    assert holds_rows(str(path), DataSettings(columns=ColumnSettings(messages="text")))
    assert not holds_rows("-", DataSettings())
    path.write_text("[")
    assert not holds_rows(str(path), DataSettings())
    line = json.dumps({"text": "Hi"})
    for text, wanted in ((f"{line}\n\n{line}\n", True), (f"{line}\n", False), (json.dumps(row(), indent=2), False)):
        path.write_text(text)
        assert holds_rows(str(path), DataSettings()) is wanted


INJECTED = json.dumps([{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}])


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv"])
def test_a_text_that_is_a_json_list_among_others_is_a_text(tmp_path, name):
    texts = ["hello", "there", "you", "and", "I", INJECTED, '["apple", "pear"]', "[1, 2]", "[]"]
    if name.endswith("csv"):
        with (tmp_path / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([("text", "label"), *((text, "ok") for text in texts)])
    else:
        jsonl(tmp_path, *({"text": text, "label": "ok"} for text in texts))
    findings = Findings()
    rows = read_labelled(str(tmp_path / name), DataSettings(), POLICY, findings)
    assert [(message.role, message.content) for item in rows for message in item.conversation.messages] == [
        ("user", text) for text in texts
    ]
    assert findings.notes["messages in column 'text', as JSON or as Python prints them, are read as one text"] == 1


@pytest.mark.parametrize("column", ["messages", "chat", "conversations"])
def test_most_cells_of_a_column_decide_whether_it_holds_messages(tmp_path, column):
    cells = [INJECTED, "", INJECTED, "hello"]
    path = jsonl(tmp_path, *({column: cell, "label": "ok"} for cell in cells[: 4 if column == "chat" else 1]))
    named = ColumnSettings(messages="chat") if column == "chat" else ColumnSettings()
    rows = read(path, columns=named, skip_empty=True)
    assert roles(rows[0].conversation) == ["system", "assistant"]
    assert [len(item.conversation.messages) for item in rows] == ([2, 2, 1] if column == "chat" else [2])


@pytest.mark.parametrize("cells", [['["Hi", "Hello"]'] * 3, ['[["user", "Hi"]]'] * 3])
def test_cells_of_lists_that_are_no_messages_are_refused(tmp_path, cells):
    path = jsonl(tmp_path, *({"conversation": cell, "label": "ok"} for cell in cells))
    with pytest.raises(DataError, match="MESSAGE_KIND"):
        read(path)


def test_a_text_that_is_a_json_list_has_its_roles_from_itself_only_where_it_is_said(tmp_path):
    """Half of the rows are not most of them, and rows without a text are none."""
    named = ColumnSettings(messages="text")
    (found, _) = read(jsonl(tmp_path, {"text": INJECTED, "label": "ok"}, {"text": "a", "label": "ok"}), columns=named)
    assert roles(found.conversation) == ["user"]
    rows = [*[{"text": "", "label": "ok"}] * 50, {"text": INJECTED, "label": "ok"}]
    (found,) = read(jsonl(tmp_path, *rows), columns=named, skip_empty=True)
    assert roles(found.conversation) == ["user"]
    findings = Findings()
    (found,) = read_multilabelled(
        jsonl(tmp_path, {"text": INJECTED, "label": "ok"}), DataSettings(columns=named), [POLICY], findings=findings
    )
    assert roles(found.conversation) == ["system", "assistant"]
    assert findings.notes == {"messages are read from the JSON in column 'text'": 1}


def test_one_conversation_of_a_text_has_its_roles_from_no_text(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"text": INJECTED}))
    assert roles(read_conversation(str(tmp_path / "one.json"))) == ["user"]
    (tmp_path / "one.json").write_text(json.dumps({"messages": INJECTED}))
    assert roles(read_conversation(str(tmp_path / "one.json"))) == ["system", "assistant"]


def test_a_label_of_a_users_own_in_a_row_of_alora_is_mapped(tmp_path):
    written = {"messages": [{"role": "user", "content": "a"}], "labels": {"p": None}, "verdicts": {}, "mine": "ok"}
    named = ColumnSettings(label="mine")
    (found,) = read(jsonl(tmp_path, written), columns=named, label_map={"ok": "violation", "violation": "ok"})
    assert found.labels["p"] == "violation"


def test_a_label_in_other_capitals_is_read_and_noted():
    _, findings = read_one({"messages": [], "Label": "ok", "ID": "x"})
    assert set(findings.notes) == {"label is read from data.columns.label=Label", "id is read from data.columns.id=ID"}


def test_a_named_column_comes_before_the_same_name_in_other_capitals():
    row = {"Text": "human", "text": "machine", "Label": "ok", "label": "violation", "ID": "ticket-7", "id": 0}
    columns, findings = ColumnSettings(messages="Text", label="Label", id="ID"), Findings()
    assert find_columns(columns, [row], findings) == columns
    columns = ColumnSettings(messages="Text,text")
    assert find_columns(columns, [row], findings).messages == "Text,text"
    assert not findings.notes


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"prompt": "a", "response": "b"}, ["user", "assistant"]),
        ({"response": "b", "system": "s", "prompt": "a"}, ["system", "user", "assistant"]),
        ({"user": "a", "assistant": "b"}, ["user", "assistant"]),
        ({"question": "a", "answer": "b"}, ["user", "assistant"]),
        ({"text": "a"}, ["user"]),
        ({"Prompt ": "a", "Response": "b"}, ["user", "assistant"]),
        ({"prompt": "a", "response": None}, ["user"]),
        ({"conversation": [{"role": "user", "content": "a"}]}, ["user"]),
    ],
)
def test_columns_that_are_found(row, roles):
    conversation, findings = read_one(row)
    assert [message.role for message in conversation.messages] == roles
    blank = [f"nothing is in column {name!r}, so the row has a message less" for name in row if row[name] is None]
    assert len(findings.notes) == 1 + len(blank) + ("system" in row)
    assert findings.notes.keys() >= {*blank}


def test_what_stands_next_to_detected_texts_and_is_not_read_is_noted():
    texts, read_from = {"question": "Why?", "answer": "So."}, "messages are read from data.columns.messages="
    no_turn = ": data.columns.messages names no such turn"
    for more, rest in (
        ({}, ""),
        ({"topic": "a", "year": 1, "policy": "p"}, "'topic' is not read"),
        ({"Context": "Docs.", "id": "1"}, "'Context' is not read"),
        ({"input": "", "history": [["a", "b"]]}, "'history' is not read"),
        ({"options": [{}], "Chat_History": "So?", "history_id": 3}, "'Chat_History', 'options' are not read"),
        (
            {"previous_turns": TURNS, "score": 0.5, "spans": [], "meta": {"a": 1}},
            "'previous_turns', 'meta' are not read",
        ),
        ({"thread": ["Hi"], "pairs": [["Hi", "Ho"]]}, "'thread', 'pairs' are not read"),
    ):
        _, findings = read_one(texts | more)
        assert list(findings.notes) == [f"{read_from}question,answer", *([rest + no_turn] if rest else [])]
    _, findings = read_one(texts | {"context": "c1"}, columns=ColumnSettings(group="context"))
    assert list(findings.notes) == [f"{read_from}question,answer"]
    named = ColumnSettings(messages="question,context,answer")
    conversation, findings = read_one(texts | {"context": "Docs."}, columns=named)
    assert [message.role for message in conversation.messages] == ["user", "user", "assistant"]
    assert not findings.notes
    _, findings = read_one({"conversations": [{"from": "human", "value": "Hi"}], "context": "Docs."})
    assert {f"{read_from}conversations", f"'context' is not read{no_turn}"} <= findings.notes.keys()
    for name, value in (
        ("generated_text", "Ho"),
        ("predictions", ["Ho"]),
        ("bot", "Ho"),
        ("body", "Ho"),
        ("thread", {"turns": TURNS}),
        ("generated", {}),
    ):
        _, findings = read_one({"messages": TURNS, name: value})
        noted = f"{name!r} is not read{no_turn}" if value else None
        assert list(findings.notes) == ([noted] if noted else [])
    for asked, answered in itertools.product(("prompt", "Instruction"), ("answer", "output", "response", "assistant")):
        conversation, findings = read_one({asked: "Hi", answered: "Ho", "text": ""})
        assert [(m.role, m.content) for m in conversation.messages] == [("user", "Hi"), ("assistant", "Ho")]
        assert list(findings.notes) == [f"{read_from}{asked},{answered}"]  # nothing is in 'text'
    for setting in ("label", "labels", "id"):
        for asked, answer in (("prompt", "answer"), ("Prompt", "Answer"), (" prompt", " answer ")):
            conversation, findings = read_one(
                {asked: "Hi", answer: "no"}, columns=ColumnSettings(**{setting: "answer"})
            )
            assert conversation.messages == (Message("user", "Hi"),)
            assert f"{read_from}{asked}" in findings.notes
    _, findings = read_one({"Conversation": "c17", "prompt": "Hi", "response": "Ho"})
    assert list(findings.notes) == [f"{read_from}prompt,response", f"'Conversation' is not read{no_turn}"]
    conversation, _ = read_one({"conversation": "Customer: Hi"}, role_map=SPOKEN_BY)
    assert conversation.messages == (Message("user", "Hi"),)
    _, findings = read_one({"messages": TURNS, "system": "Be kind.", "Response": "Ho", "documents": [], "text": "?"})
    assert "'Response', 'text' are not read: data.columns.messages names no such turn" in findings.notes
    _, findings = read_one({"messages": TURNS, "response": "Ho"}, columns=ColumnSettings(label="response"))
    assert not findings.notes
    conversation, _ = read_one({"prompt": "Hi", "response": "Ho"}, columns=ColumnSettings(group="prompt"))
    assert [m.content for m in conversation.messages] == ["Hi", "Ho"]
    _, findings = read_one({"text": "Hi", "score": "0.1", "a": [1]}, columns=ColumnSettings(label="%policy%"))
    assert list(findings.notes) == [f"{read_from}text"]


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ("answer,text,prompt", "prompt,answer"),
        ("text,response", None),
        ("text,question", "text"),
        ("prompt,response,output", "prompt,output"),
        ("instruction,prompt,answer", "instruction,answer"),
        ("prompt,user,assistant", "user,assistant"),
        ("instruction,assistant,user", "instruction,user,assistant"),
        ("user,assistant,response", "user,response"),
    ],
)
def test_texts_of_which_it_is_not_plain_which_are_turns_are_asked_for(names, meant):
    row = {name.title(): f"says {name}" for name in names.split(",")}
    conversation, findings = read_one(row)
    assert conversation is None
    (finding,) = findings.all()
    assert finding.code == "COLUMN_MISSING"
    assert f"{', '.join(map(repr, row))} may be turns; set data.columns.messages=NAME,NAME, one" in finding.problem
    if meant is not None:
        conversation, _ = read_one(row, columns=ColumnSettings(messages=meant))
        assert [m.content for m in conversation.messages] == [f"says {name}" for name in meant.split(",")]


@pytest.mark.parametrize(
    ("row", "columns", "named"),
    [
        ({"question": "a", "answer": "yes"}, {"label": "answer"}, "NAME"),
        ({"prompt": "a", "answer": "b", "response": "c"}, {"group": "answer"}, "prompt,response"),
        ({"prompt": "a", "agent": "anna"}, {"messages": "prompt,response"}, "NAME"),
        ({" prompt": "a", "response ": "b"}, {"messages": "conversations"}, "NAME,NAME"),
        ({"answer": "b", "question": "a"}, {"messages": "conversations"}, "question,answer"),
    ],
)
def test_what_is_said_of_missing_columns_names_no_label_and_no_two_of_a_kind(row, columns, named):
    known, findings = DataSettings(columns=ColumnSettings(**columns)), Findings()
    assert conversation_of(row, "f:1", known, findings) is None
    assert findings.all()[0].problem.endswith(f"set data.columns.messages={named}, one for all rows of a file")


def test_a_user_who_is_a_group_is_no_turn():
    row = {"user": "u1", "prompt": "Hi", "assistant": "Ho"}
    conversation, _ = read_one(row, columns=ColumnSettings(group="user"))
    assert [m.content for m in conversation.messages] == ["Hi", "Ho"]
    assert read_one(row)[0] is None


def test_a_column_that_is_filled_now_and_then_leaves_the_turns_plain(tmp_path):
    pair, path = {"prompt": "a", "response": "b"}, tmp_path / "rows.jsonl"
    for more, codes in (
        ([{"answer": "c"}], {None}),
        ([{"answer": 3}] * 30, {None}),
        ([{"answer": " "}] * 30, {None}),
        ([{"answer": "c"}] * 10, {"COLUMN_MISSING"}),
        ([{"response": ""}] * 47 + [{"response": "", "answer": "c"}] * 3, {"COLUMN_MISSING"}),
    ):
        path.write_text(
            "".join(json.dumps(row) + "\n" for row in [pair | it for it in more] + [pair] * (60 - len(more)))
        )
        rows = [row for _, row in stream_conversations(str(path))]
        assert {row.findings[0].code if isinstance(row, Rejected) else None for row in rows} == codes


def test_a_note_names_what_may_be_a_turn_first_and_how_many_more_there_are(tmp_path):
    row = {f"tag{number}": "x" for number in range(9)} | {"prompt": "a", "model_output": "b"}
    _, findings = read_one(row)
    shown = "'model_output', 'tag0', 'tag1', 'tag2', 'tag3', 'tag4', 'tag5', 'tag6' and 2 more are not read"
    assert f"{shown}: data.columns.messages names no such turn" in findings.notes
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    rows = [{"prompt": "a", "context": "c"}, {"prompt": "a", "response": "b", "story": "So."}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row for _, row in stream_conversations(str(path), None, notes)]
    assert notes["'context' is not read: data.columns.messages names no such turn"] == 1
    assert notes["'story' is not read: data.columns.messages names no such turn"] == 1


def test_labels_of_several_policies_in_columns_are_no_turns(tmp_path):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    path.write_text(json.dumps({"messages": TURNS, "toxic": "yes", "response_label": "no", "bot_replies": "Ho"}) + "\n")
    settings = DataSettings(columns=ColumnSettings(label="%policy%"))
    assert len(list(stream_conversations(str(path), settings, notes))) == 1
    assert notes == {"'bot_replies' is not read: data.columns.messages names no such turn": 1}


def test_a_reply_next_to_a_row_of_alora_s_own_is_noted():
    own = {"messages": TURNS, "label": "ok", "generated": {"by": "m"}, "near": "x"}
    assert not read_one(own)[1].notes
    _, findings = read_one(own | {"response": "Ho"})
    assert findings.notes == {"'response' is not read: data.columns.messages names no such turn": 1}


def test_a_column_is_noted_once_however_many_rows_have_others(tmp_path):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    path.write_text("".join(json.dumps({"text": "a"} | {f"c{n}": "x" for n in range(m)}) + "\n" for m in range(1, 4)))
    assert len([row for _, row in stream_conversations(str(path), None, notes)]) == 3
    told = [f"'c{n}' is not read: data.columns.messages names no such turn" for n in range(3)]
    assert [note for note in notes if "not read" in note] == told


@pytest.mark.parametrize(("nothing", "later"), [(math.nan, "c"), ([], TURNS)])
def test_a_column_whose_first_row_holds_a_number_or_nothing_is_told_once_it_holds_a_turn(tmp_path, nothing, later):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    rows = [{"text": "a", "old": nothing}, {"text": "b", "old": later}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len([row for _, row in stream_conversations(str(path), None, notes)]) == 2
    assert notes["'old' is not read: data.columns.messages names no such turn"] == 1


def test_a_column_of_several_kinds_is_told_once(tmp_path):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    rows = [{"text": "a", "context": math.nan}, {"text": "b", "context": "c"}, {"text": "c", "context": "d", "x": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len([row for _, row in stream_conversations(str(path), None, notes)]) == 3
    assert notes["'context' is not read: data.columns.messages names no such turn"] == 1


def test_a_reply_left_out_may_have_columns_about_it(tmp_path):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    rows = [{"prompt": "a", "response": "b"}, {"prompt": "a", "bot_response": "b"}, {"prompt": "a", "model": "m"}]
    rows.append({"prompt": "a", "response_id": "r1", "answer_type": "x"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [row for _, row in stream_conversations(str(path), None, notes)]
    assert not [row for row in found if isinstance(row, Rejected)]
    assert notes["'bot_response' is not read: data.columns.messages names no such turn"] == 1


def test_a_name_in_small_letters_comes_before_another_of_the_same_letters():
    for own in (
        {"prompt": "real", "response": "r", "Prompt": "t"},
        {"PROMPT": "t", "prompt": "real", "response": "r"},
    ):
        assert read_one(own)[0].messages[0].content == "real"


@pytest.mark.parametrize(
    "names", [("role", "content"), ("from", "value"), ("Role", "Content"), ("speaker", "content"), ("sender", "value")]
)
def test_a_message_a_row_is_no_conversation_a_row(names):
    row = dict(zip(names, ("assistant", "Hi"), strict=True)) | {"conversation_id": "c1", "turn": "1"}
    _, findings = read_one(row)
    (finding,) = findings.all()
    gather = "one row is one conversation: gather a conversation's turns into messages"
    assert finding.problem.endswith(f"; {gather}")
    assert "data.columns" not in finding.problem
    named = ColumnSettings(messages=names[1])
    conversation, findings = read_one(row, columns=named)
    assert conversation.messages == (Message("user", "Hi"),)
    read_as = {f"column {names[1]!r} is read as user": 1}
    assert findings.notes == {f"{names[0]!r} is not read: {gather}": 1} | read_as
    for sender in ("sender", "from"):
        mail = {sender: "ann@example.org", "subject": "Hello", "content": "Hi"}
        assert (
            read_one(mail)[1].all()[0].problem.endswith("; set data.columns.messages=NAME, one for all rows of a file")
        )
    assert read_one({"role": "Rep", "content": "Hi"})[1].all()[0].problem.endswith(f"; {gather}")
    assert (
        read_one(row | {names[0]: "Agent"}, columns=named)[1].notes
        == {f"{names[0]!r} is not read: {gather}": 1} | read_as
    )
    for other in (row | {names[0]: "ann"}, row | {names[0]: None}, {names[1]: "Hi"}):
        assert read_one(other, columns=named)[1].notes == read_as
    assert read_one(row, columns=ColumnSettings(messages=names[1], group=names[0]))[1].notes == read_as
    assert read_one(row | {names[0]: "Ann"}, columns=named, role_map={"Ann": "user"})[1].notes.keys() > read_as.keys()
    for other in ({"role": "user"}, {"content": "Hi"}, {"role": "user", "content": ["Hi"]}, {"role": 1, "value": "Hi"}):
        (finding,) = read_one(other)[1].all()
        assert finding.problem.endswith("; set data.columns.messages=NAME, one for all rows of a file")


def test_rows_without_any_text_are_left_out_by_choice(tmp_path):
    chats = tmp_path / "chats.csv"
    chats.write_text("prompt,response,label\n,,ok\nHi,Hello,ok\n,  ,\n")
    policy, findings = Policy("p", "T", "R"), Findings()
    with pytest.raises(DataError, match="3 problems"):
        read_labelled(str(chats), DataSettings(), policy)
    rows = read_labelled(str(chats), DataSettings(skip_empty=True), policy, findings)
    assert [row.where for row in rows] == ["chats.csv:3"]
    assert findings.notes["a row without any text is left out (data.skip_empty)"] == 2
    streamed = [row for _, row in stream_conversations(str(chats), DataSettings(skip_empty=True))]
    assert [isinstance(row, Rejected) for row in streamed] == [True, False, True]
    assert all(row.findings for row in streamed if isinstance(row, Rejected)), "a log has a verdict or a reason a row"


def test_a_column_that_is_named_is_never_replaced_by_another(tmp_path):
    """It may be misspelt, and the usual column hold what an old model guessed, or texts that were not redacted."""
    policy, rows = Policy("p", "T", "R", labels=("violation", "ok")), tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "Hi"}]
    row = {"messages": turns, "redacted": turns, "label": "ok", "human": "violation", "labels": {"p": "ok"}}
    rows.write_text(json.dumps(row))
    for named, missing in (
        (ColumnSettings(label="humam"), "no column 'humam'; the row has"),
        (ColumnSettings(messages="redactd"), "no column 'redactd'"),
        (ColumnSettings(labels="lables", label="humam"), "no column 'humam' or 'lables'"),
    ):
        with pytest.raises(DataError, match=missing):
            read_labelled(str(rows), DataSettings(columns=named), policy)
    named = ColumnSettings(label="Human", messages="Redacted")  # other capitals are no slip
    rows.write_text(json.dumps({key: value for key, value in row.items() if key != "labels"}))
    (found,) = read_labelled(str(rows), DataSettings(columns=named), policy)
    assert found.labels == {"p": "violation"}


def test_each_source_has_a_form_of_its_own_where_no_column_is_named(tmp_path):
    chats, messages = tmp_path / "chats.csv", tmp_path / "messages.jsonl"
    chats.write_text("Question,Answer,label\nHi,Hello,ok\n")
    messages.write_text('{"conversations": [{"from": "human", "value": "Hi"}], "label": "ok"}\n')
    policy = Policy("p", "T", "R", labels=("violation", "ok"))
    found = read_labelled([str(chats), str(messages)], DataSettings(), policy)
    assert [[message.role for message in row.conversation.messages] for row in found] == [
        ["user", "assistant"],
        ["user"],
    ]


def test_every_row_of_a_source_is_read_by_one_form(tmp_path):
    turns, path = [{"role": "user", "content": "Hi"}], tmp_path / "rows.jsonl"
    pair = {"prompt": "a", "response": "b"}
    for first in ("messages", "conversations"):
        rows = [pair, pair, {first: turns}]
        for order in (rows, rows[::-1]):
            path.write_text("".join(json.dumps(row | {"label": "ok"}) + "\n" for row in order))
            with pytest.raises(DataError) as caught:
                read_labelled(str(path), DataSettings(), Policy("p", "T", "R", labels=("violation", "ok")))
            (finding,) = caught.value.findings
            assert (finding.code, finding.count) == ("COLUMN_MISSING", 2)
            assert f"no column '{first}'" in finding.problem
            may_be = "'prompt', 'response' may be turns; set data.columns.messages=prompt,response"
            assert finding.problem.endswith(f"{may_be}, one for all rows of a file")


def test_columns_are_found_by_the_first_fifty_rows_together(tmp_path):
    path, asked = tmp_path / "rows.jsonl", {"prompt": "a"}
    policy = Policy("p", "T", "R", labels=("violation", "ok"))
    for before, sizes in ((49, {1: 49, 2: 1}), (50, {1: 51})):
        rows = [asked] * before + [asked | {"response": "b"}]
        path.write_text("".join(json.dumps(row | {"Label": "ok"}) + "\n" for row in rows))
        findings = Findings()
        found = read_labelled(str(path), DataSettings(), policy, findings)
        assert Counter(len(row.conversation.messages) for row in found) == sizes
        unread = "'response' is not read: data.columns.messages names no such turn"
        assert (unread in findings.notes) is (before == 50)
        assert findings.notes["label is read from data.columns.label=Label"] == 1


def test_columns_that_are_named_or_called_messages_are_not_looked_for():
    row = {"messages": [{"role": "user", "content": "a"}], "text": "other", "mine": "third"}
    conversation, findings = read_one(row)
    assert conversation.messages == (Message("user", "a"),)
    assert findings.notes == {"'text', 'mine' are not read: data.columns.messages names no such turn": 1}
    conversation, findings = read_one(row, columns=ColumnSettings(messages="mine"))
    assert conversation.messages == (Message("user", "third"),)
    assert findings.notes == {"column 'mine' is read as user": 1}
