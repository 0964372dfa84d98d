"""Which columns of a row are read, found or named."""

import csv
import json
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.columns import holds_rows
from alora.data.conversation import Message, read_conversation, stream_conversations
from alora.data.labelled import read_labelled, read_multilabelled
from alora.errors import DataError
from alora.findings import Findings
from tests.unit.data.rows import POLICY, jsonl, read, roles, row, streamed


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
    for columns, beside in (("prompt,response", "'prompt', 'response'"), ("prompt", "'prompt'")):
        notes, named = Counter[str](), DataSettings(columns=ColumnSettings(messages=columns))
        assert read_conversation(str(path), named, notes).messages == (Message("user", "Hi"),)
        assert notes.pop(f"messages are read from 'messages', and not from {beside}") == 1
        assert not [note for note in notes if beside in note]
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
