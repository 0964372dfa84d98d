"""Readers: what they accept, and one clear line with a place for each thing that they do not."""

import csv
import datetime
import decimal
import gzip
import io
import json
import os
import resource
import sys
import threading
from collections import Counter
from dataclasses import replace

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data import formats, openers, parquet, sources
from alora.data.columns import holds_rows
from alora.data.conversation import Conversation, Message, Rejected, read_conversation, stream_conversations
from alora.data.labelled import read_labelled, read_multilabelled
from alora.errors import DataError
from alora.findings import Findings, as_lines
from alora.policy import Policy
from alora.reading import read_whole

POLICY = Policy("p", "T", "R")
OTHER = Policy("q", "T", "R")


def row(text="Hi", label="ok", **more):
    return {"messages": [{"role": "user", "content": text}], "label": label, **more}


def jsonl(folder, *rows, name="train.jsonl"):
    path = folder / name
    lines = [
        item if isinstance(item, bytes) else (item if isinstance(item, str) else json.dumps(item)) for item in rows
    ]
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return str(path)


def read(path, **settings):
    return read_labelled(path, DataSettings(**settings), POLICY)


def test_rows_in_order_with_ids_and_places(tmp_path):
    rows = read(jsonl(tmp_path, row("a", id="x"), "", row("b", "violation", id=0), row("c")))
    assert [item.conversation.id for item in rows] == ["x", "0", "train.jsonl:4"]
    assert [item.where for item in rows] == ["train.jsonl:1", "train.jsonl:3", "train.jsonl:4"]
    assert [item.labels["p"] for item in rows] == ["ok", "violation", "ok"]
    assert rows[0].conversation == Conversation("x", (Message("user", "a"),))


@pytest.mark.parametrize(
    "rows",
    [
        (b"\xef\xbb\xbf" + json.dumps(row()).encode(), row()),
        (json.dumps(row()) + "\r", row(), ""),
        (row("NUL \x00 inside"), row()),
        (row("x" * 2**20), row()),
        ({**row(), "messages": [*row()["messages"], {"role": "assistant", "content": "", "extra": 1}]}, row()),
    ],
    ids=["utf-8 mark", "crlf", "escaped NUL", "one megabyte", "an empty answer"],
)
def test_odd_but_sound_files(tmp_path, rows):
    found = read(jsonl(tmp_path, *rows))
    assert len(found) == 2
    assert not found[0].conversation.messages[0].content.startswith("\ufeff")


BAD_ROWS = {
    "truncated": ('{"messages": [{"role": "user", "cont', r"not JSON: .* the text ends too early"),
    "an array": ("[1, 2]", "a row is an object with 'messages', not list"),
    "a number": ("3", "a row is an object"),
    "a key twice": ('{"label": "ok", "label": "violation"}', "the key 'label' is there twice"),
    "nested without end": ("[" * 200_000, "nested too deeply"),
    "a huge number": ('{"label": 1' + "0" * 5000 + "}", r"not JSON: a number of 5001 digits, 10000000\.\.\.; shorten"),
    "a huge label": (row(label="x" * 100_000), r"label 'x{36}\.\.\. is not one of"),
    "label against labels": (
        row(label="violation", labels={"p": "ok", "q": "violation"}),
        "'label' says 'violation' and 'labels' says 'ok' of 'p'; remove one of them",
    ),
    "label against labels, by policy": (row(label="x", policy="p", labels={"p": "ok"}), "'label' says 'x' and"),
    "not UTF-8": (b'{"messages": "caf\xe9"}', "not UTF-8: .* at byte 17 of the line"),
    "unknown label": (row(label="maybe"), "label 'maybe' is not one of violation, ok of policy 'p'; fix the row"),
    "null label": (row(label=None), "label of 'p' is missing or null"),
    "label of a wrong type": (row(label=[1]), r"label of 'p' is list \[1\]"),
    "a number for a label": (row(label=1), "label '1' is not one of"),
    "no label": ({"messages": row()["messages"], "gold": "ok"}, "no column 'label' or 'labels'; the row has .*'gold'"),
    "no messages": ({"label": "ok", "body": "x"}, "no column 'messages'; the row has 'label', 'body'"),
    "empty conversation": ({"messages": [], "label": "ok"}, "'messages' is empty"),
    "only empty messages": (row(" \n"), "every message is empty"),
    "messages as a text": ({"messages": "Hi", "label": "ok"}, "'messages' is str 'Hi'; messages are a list"),
    "messages as Python writes them": ({"messages": "[{'role': 'user'}]", "label": "ok"}, "as JSON, by json.dumps"),
    "a message as a text": ({"messages": ["Hi"], "label": "ok"}, "message 1: is str 'Hi'"),
    "bad role": (
        {"messages": [{"role": "robot", "content": "x"}], "label": "ok"},
        "role is str 'robot', not one of .*data.role_map",
    ),
    "no role": ({"messages": [{"content": "x"}], "label": "ok"}, "role is missing or null"),
    "content of a wrong type": ({"messages": [{"role": "user", "content": 3}], "label": "ok"}, "content is int 3"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "label": "ok"},
        r"content holds a part of type 'image_url', .* leave it out .*data.skip_media=true.* \[CONTENT_PART\]",
    ),
    "a part of no kind": (
        {"messages": [{"role": "user", "content": [3]}], "label": "ok"},
        "content holds int 3, and alora reads text",
    ),
    "a tool call without a name": (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}, *row()["messages"]], "label": "ok"},
        "a tool call is dict .*TOOL_CALL",
    ),
    "no content": ({"messages": [{"role": "user"}], "label": "ok"}, "content is missing or null"),
    "lone surrogate": (row("a\ud800"), "lone surrogate at character 1"),
    "lone surrogate in an id": (row(id="a\ud800"), "'id' holds a lone surrogate"),
    "id of a wrong type": (row(id=[1]), "an id is a text or a number"),
    "id of a truth value": (row(id=True), "an id is a text or a number"),
    "label in other letters": (row(label="OKAY"), "label 'OKAY' is not one of"),
    "labels of a wrong type": (
        {"messages": row()["messages"], "labels": "ok"},
        "'labels' is str 'ok'; map each policy",
    ),
    "unknown label of many": ({"messages": row()["messages"], "labels": {"p": "x"}}, "label 'x' is not one of"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_told_with_its_line(tmp_path, case):
    bad, complaint = BAD_ROWS[case]
    with pytest.raises(DataError, match=r"train\.jsonl:2: .*" + complaint) as caught:
        read(jsonl(tmp_path, row(), bad, row("b")))
    assert len(caught.value.findings) == 1


@pytest.mark.timeout(10)
def test_a_key_that_is_there_twice_is_found_among_many(tmp_path):
    keys = ",".join(f'"key {number}": 1' for number in range(100_000))
    with pytest.raises(DataError, match="the key 'key 99999' is there twice"):
        read(jsonl(tmp_path, f'{{{keys}, "key 99999": 2}}'))


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"p": "ok"}},
        {"labels": {"p": "ok", "q": "violation"}, "label": None},
        {"labels": {"p": "ok", "q": "violation"}, "label": "violation", "policy": "q"},
        {"labels": {"p": False}, "label": "good"},
    ],
    ids=["same", "none", "of another policy", "same after the map"],
)
def test_label_beside_labels_that_does_not_contradict(tmp_path, more):
    (found,) = read(jsonl(tmp_path, row() | more), label_map={"good": "ok", "false": "ok"})
    assert found.labels == {"p": "ok"}


def test_all_findings_come_at_once_and_the_rest_is_counted(tmp_path):
    rows = [row(label="maybe") for _ in range(50)]
    with pytest.raises(DataError, match="50 problems") as caught:
        read(jsonl(tmp_path, row(), "{", *rows[:49]))
    assert [(item.code, item.where, item.count) for item in caught.value.findings] == [
        ("NOT_JSON", "train.jsonl:2", 1),
        ("LABEL_UNKNOWN", "train.jsonl:3", 49),
    ]
    assert str(caught.value.findings[1]).startswith("49 rows: label 'maybe' is not one of")
    with pytest.raises(DataError, match="50 problems") as caught:
        read(jsonl(tmp_path, *[row(label=f"maybe {number}") for number in range(50)]))
    assert len(caught.value.findings) == 21
    assert str(caught.value.findings[-1]) == "... and 30 more"


def test_duplicate_ids_name_both_places(tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl:3: id 'x' is also at train.jsonl:1"):
        read(jsonl(tmp_path, row(id="x"), row(), row(id="x")))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\n \n", "holds no rows"),
        ("a.jsonl", json.dumps(row()).encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        ("a.jsonl", json.dumps(row()).encode("utf-16-le"), "holds NUL bytes"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00", "its gzip data is damaged"),
        ("a.jsonl.gz", gzip.compress(json.dumps(row()).encode(), mtime=0)[:-4], "its gzip data is damaged"),
        ("a.jsonl", b'{\n  "label": "ok"\n}\n', "spreads an object over several lines"),
        ("a.json", b"[", "NOT_JSON"),
        ("a.json", b"[1, 2", "3 problems"),
        ("a.json", b'[{"label": "\xff"}]', "not UTF-8"),
        ("a.csv", b"text,label\nHi,\xff\n", "CSV UTF-8 in a spreadsheet"),
        ("a.csv", b"text,text\nHi,ok\n", "two columns are named 'text'"),
        ("a.csv", b'text,label\n"Hi,ok\n', r"a.csv:2: not CSV: unexpected end of data.*\[NOT_CSV\]"),
        ("a.csv", b"text,label\nHi, you,ok\n", r"a.csv:2: 3 cells and 2 columns.*\[CELLS\]"),
        ("a.csv", b"text,label\nHi\0,ok\n", "NUL bytes"),
        ("a.csv", b"PK\x03\x04", "a spreadsheet or a zip file; save the table as CSV"),
        ("a.jsonl", b"PAR1\x15\x04", "name it .parquet"),
        ("a.jsonl", b"\x7fELF\x00\x00", "holds NUL bytes"),
        ("a.parquet", b"PAR1 not really", "not a Parquet file"),
        ("a.parquet", b"", "not a Parquet file"),
        ("a.csv", b"x,y", "holds no rows"),
        ("a.txt", b"x", "ending '.txt' is not known; give .jsonl, .* .csv"),
    ],
)
def test_a_file_that_is_something_else(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read(str(path))


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="is a folder"):
        read(str(tmp_path))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_LINE", 1000)
    with pytest.raises(DataError, match=r"train.jsonl:2: longer than .* \[ROW_TOO_LONG\]"):
        read(jsonl(tmp_path, row(), row("x" * 2000)))


def test_columns_and_labels_are_mapped(tmp_path):
    path = jsonl(tmp_path, {"chat": row()["messages"], "y": 1, "key": "k"}, {"chat": row()["messages"], "y": False})
    columns = ColumnSettings(messages="chat", label="y", id="key")
    rows = read(path, columns=columns, label_map={"1": "violation", "false": "ok"})
    assert [item.labels["p"] for item in rows] == ["violation", "ok"]
    assert rows[0].conversation.id == "k"


def streamed(path, *lines, notes=None, **columns):
    """The turns of each row, by role, or its problem."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = DataSettings(columns=ColumnSettings(**columns))
    rows = [row for _, row in stream_conversations(str(path), settings, notes)]
    return [row.findings[0].code if isinstance(row, Rejected) else roles(row.conversation) for row in rows]


def roles(conversation):
    return [message.role for message in conversation.messages]


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


def test_many_labels_for_one_policy_skip_what_is_not_annotated(tmp_path):
    messages = row()["messages"]
    path = jsonl(
        tmp_path,
        {"messages": messages, "labels": {"p": "ok", "z": "whatever"}},
        {"messages": messages, "labels": {"p": None}},
        {"messages": messages, "labels": {}},
    )
    assert [item.where for item in read(path)] == ["train.jsonl:1"]
    with pytest.raises(DataError, match="none of its 3 rows is labelled for policy 'q'"):
        read_labelled(path, DataSettings(), OTHER)


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


def test_many_policies_share_a_file(tmp_path):
    messages = row()["messages"]
    path = jsonl(tmp_path, {"messages": messages, "labels": {"p": "ok", "q": "violation"}}, row(label="ok", policy="q"))
    rows = read_multilabelled(path, DataSettings(), [POLICY, OTHER])
    assert [dict(item.labels) for item in rows] == [{"p": "ok", "q": "violation"}, {"q": "ok"}]
    with pytest.raises(DataError, match="a row with one label names one of p, q") as caught:
        read_multilabelled(jsonl(tmp_path, row()), DataSettings(), [POLICY, OTHER])
    (finding,) = caught.value.findings
    assert "policies=[ID] reads the file for one policy, and a file for each is FILE.%policy%.csv" in finding.problem
    assert "data.train" not in finding.problem  # nor any key: it may be of data.test
    (found,) = read_multilabelled(jsonl(tmp_path, row()), DataSettings(), [OTHER])
    assert found.labels == {"q": "ok"}


def test_a_row_that_names_another_policy_is_no_row_of_the_only_one(tmp_path):
    """One policy of a file of several is trained, by a sweep say."""
    path, findings = jsonl(tmp_path, row("mine", policy="p"), row("theirs", policy="q")), Findings()
    found = read_labelled(path, DataSettings(), POLICY, findings)
    assert [item.where.partition(":")[2] for item in found] == ["1"]
    assert findings.notes == {"a row whose 'policy' is another than p is left out": 1}
    with pytest.raises(
        DataError, match=r"none of its 1 rows is labelled for policy 'p' .*rename a column of these names"
    ):
        read(jsonl(tmp_path, row(policy="q")))


NOBODYS = (row(), row(policy=None), row(policy=""), row(policy=" "), row(policy=float("nan")))


def test_rows_that_name_no_policy_are_nobody_s_where_others_name_another(tmp_path):
    path, findings = jsonl(tmp_path, *NOBODYS, row("theirs", policy="q"), row("mine", policy="p")), Findings()
    with pytest.raises(DataError) as caught:
        read(path)
    (finding,) = caught.value.findings
    assert (finding.code, finding.count, finding.where) == ("POLICY_UNKNOWN", 5, "train.jsonl:1")
    assert finding.problem.startswith("the row names no policy, and others of the file do ('p', 'q'); fill in 'policy'")
    with pytest.raises(DataError, match=r"where no row names one, policies=\[ID\] reads the file") as caught:
        read_multilabelled(path, DataSettings(), [POLICY, OTHER])
    assert [finding.count for finding in caught.value.findings] == [5]
    mine = jsonl(tmp_path, *NOBODYS, row("mine", policy="p"), name="mine.jsonl")
    assert len(read_labelled([mine, jsonl(tmp_path, *NOBODYS)], DataSettings(), POLICY, findings)) == 11
    assert findings.notes == {"a row that names no policy is read as one of p, which others name": 5}


@pytest.mark.parametrize("named", [["p"], ["q"], [], {"id": "q"}, {}])
def test_a_policy_that_is_no_text_is_not_the_only_one(tmp_path, named):
    with pytest.raises(DataError, match=r"'policy' is (list|dict) .* names one of p; write it there.*POLICY_UNKNOWN"):
        read(jsonl(tmp_path, row("mine", policy="p"), row(policy=named)))


def test_a_policy_that_is_a_number_is_named_by_it(tmp_path):
    path = jsonl(tmp_path, row(policy=7), row(policy=7.0), row(policy=8))
    assert len(read_labelled(path, DataSettings(), Policy("7", "T", "R"))) == 2


@pytest.mark.parametrize("name", ["policy", "Policy"])
@pytest.mark.parametrize("setting", ["id", "group"])
def test_a_policy_column_that_is_named_as_another_names_no_policy(tmp_path, name, setting):
    path = jsonl(tmp_path, row(**{name: "a-17"}), row(**{name: "a-18"}))
    assert len(read(path, columns=ColumnSettings(**{setting: name}))) == 2


def test_a_table_with_a_column_for_each_policy(tmp_path):
    path = tmp_path / "wide.csv"
    path.write_text("chat,is_p,is_q,label\nHi,yes,,a\nHo,no,YES,b\n")
    columns = ColumnSettings(messages="chat", label="is_%policy%")
    settings = DataSettings(columns=columns, label_map={"yes": "violation", "no": "ok"})
    rows = read_multilabelled(str(path), settings, [POLICY, OTHER])
    assert [row.labels for row in rows] == [{"p": "violation"}, {"p": "ok", "q": "violation"}]
    own = {"r": Findings()}
    read_multilabelled(str(path), settings, [POLICY, Policy("r", "T", "R")], own)
    (finding,) = own["r"].all()
    assert (finding.code, finding.count) == ("COLUMN_MISSING", 2)
    assert "no column 'is_r'" in finding.problem
    with pytest.raises(DataError, match=r"no column 'label'.* or to %policy% where each policy has a column"):
        read_multilabelled(jsonl(tmp_path, {"messages": "Hi"}), DataSettings(), [POLICY, OTHER])


@pytest.mark.parametrize("labels", [{"topic": "billing"}, {"p": "ok"}, ["x"], "billing"])
def test_a_label_column_that_is_named_alone_is_the_only_one_read(tmp_path, labels):
    path = jsonl(tmp_path, row(human="violation", labels=labels))
    (found,) = read(path, columns=ColumnSettings(label="human"))
    assert found.labels == {"p": "violation"}


def test_labels_that_are_named_alone_are_the_only_ones_read(tmp_path):
    path = jsonl(tmp_path, row(label="ok", ann={"p": "violation"}))
    (found,) = read(path, columns=ColumnSettings(labels="ann"))
    assert found.labels == {"p": "violation"}


def test_a_label_that_is_a_fraction(tmp_path):
    half = Policy("p", "T", "R", ("1.0", "0.5"), ("Yes", "No"))
    found = read_labelled(jsonl(tmp_path, row(label=0.5), row(label=1.0)), DataSettings(), half)
    assert [item.labels["p"] for item in found] == ["0.5", "1.0"]


@pytest.mark.parametrize("number", ["1", "1.0"])
def test_whole_numbers_that_a_table_with_gaps_has_as_floats_are_labels(tmp_path, number):
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": ["a", "b", "c"], "p": [1.0, 0.0, None]}), tmp_path / "gaps.parquet"
    )
    (tmp_path / "gaps.csv").write_text("prompt,p\na,1.0\nb,0.0\nc,\n")
    settings = DataSettings(
        columns=ColumnSettings(label="%policy%"), label_map={number: "violation", number.replace("1", "0", 1): "ok"}
    )
    for name in ("gaps.parquet", "gaps.csv"):
        rows = read_multilabelled(str(tmp_path / name), settings, [POLICY])
        assert [row.labels for row in rows] == [{"p": "violation"}, {"p": "ok"}, {}]
    with pytest.raises(DataError, match=r"'data.label_map=\{\"1\": LABEL\}'"):
        read_multilabelled(str(tmp_path / "gaps.csv"), replace(settings, label_map={}), [POLICY])


def test_ids_that_come_twice_are_one_finding(tmp_path):
    paths = [jsonl(tmp_path, *(row(f"{name} {n}", id=n) for n in range(30)), name=f"{name}.jsonl") for name in "ab"]
    with pytest.raises(DataError) as caught:
        read_labelled(paths, DataSettings(), POLICY)
    (finding,) = caught.value.findings
    assert (finding.code, finding.count, finding.where) == (
        "ID_TWICE", 30, "b.jsonl:1: id '0' is also at a.jsonl:1"
    )  # fmt: skip


def test_what_is_wrong_with_one_policys_labels_is_gathered_apart_and_costs_no_other_its_row(tmp_path):
    messages = row()["messages"]
    path = jsonl(
        tmp_path,
        {"messages": messages, "labels": {"p": "ok", "q": "perhaps"}},
        {"messages": messages, "labels": {"p": "violation", "q": "ok"}, "label": "violation", "policy": "q"},
        {"messages": messages, "label": None, "policy": "q"},
    )
    own = {"p": Findings(), "q": Findings()}
    rows = read_multilabelled(path, DataSettings(), [POLICY, OTHER], own)
    assert [item.labels.get("p") for item in rows] == ["ok", "violation", None]
    assert own["p"].count == 0
    assert own["q"].count == 3
    assert [(item.code, item.where) for item in own["q"].all()] == [
        ("LABEL_UNKNOWN", "train.jsonl:1"),
        ("LABELS_DIFFER", "train.jsonl:2"),
        ("LABEL_MISSING", "train.jsonl:3"),
    ]
    with pytest.raises(DataError, match="3 problems"):
        read_multilabelled(path, DataSettings(), [POLICY, OTHER])


def test_what_is_wrong_with_a_row_is_everybodys_fault(tmp_path):
    own = {"p": Findings(), "q": Findings()}
    path = jsonl(tmp_path, {"messages": [], "labels": {"p": "ok", "q": "perhaps"}})
    with pytest.raises(DataError, match="'messages' is empty"):
        read_multilabelled(path, DataSettings(), [POLICY, OTHER], own)


@pytest.mark.parametrize(
    "column",
    [pyarrow.array([b"\xff"]).view(pyarrow.string()), pyarrow.array([2**31 - 1], pyarrow.date32())],
    ids=["not UTF-8", "a day that Python has not"],
)
def test_parquet_that_python_cannot_hold(column, tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"label": column}), path)
    with pytest.raises(DataError, match=r"rows.parquet: not a Parquet file that can be read"):
        read(str(path))


@pytest.mark.parametrize("value", [datetime.date(2020, 1, 1), decimal.Decimal("1.5"), b"\xff"])
@pytest.mark.parametrize("place", ["arguments", "content"])
def test_parquet_values_that_json_has_no_form_for(place, value, tmp_path):
    call = {"function": {"name": "book", "arguments": {"when": value}}}
    message = {
        "arguments": {"role": "assistant", "content": None, "tool_calls": [call]},
        "content": {"role": "tool", "content": {"when": value}},
    }[place]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": [message], "label": "ok"}]), path)
    with pytest.raises(DataError, match=r"rows.parquet:1: message 1: holds dict .* which JSON has no form for"):
        read_labelled(str(path), DataSettings(), Policy("p", "P", "Rule."))


def test_parquet_with_maps(tmp_path):
    tags = pyarrow.array([[("a", "x")], [], None], pyarrow.map_(pyarrow.string(), pyarrow.string()))
    deep = pyarrow.array(
        [[[("a", [1, 2])]], [], None], pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.int64())))
    )
    table = pyarrow.table({"prompt": ["Hi", "Ho", "Ha"], "label": ["ok"] * 3, "tags": tags, "deep": deep})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    assert [item.conversation.messages[0].content for item in read(str(path))] == ["Hi", "Ho", "Ha"]


def test_parquet_reads_as_jsonl_does(tmp_path):
    rows = [row("a", id="x"), row("b", "violation", id="y")]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = read(str(path))
    assert [item.conversation for item in found] == [i.conversation for i in read(jsonl(tmp_path, *rows))]
    assert found[1].where == "rows.parquet:2"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"]}), path)
    with pytest.raises(DataError, match=r"rows.parquet:1: no column 'messages'"):
        read(str(path))


def test_a_table_gives_no_call_the_arguments_of_others(tmp_path):
    """Parquet and the hub's data sets give each object the keys of all."""

    def calling(name, arguments):
        call = {"function": {"name": name, "arguments": arguments}}
        return row() | {"messages": [*row()["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]}

    rows = [calling("weather", {"city": "X"}), calling("refund", {"order": 7, "why": [None]})]
    as_lines = [item.conversation.messages for item in read(jsonl(tmp_path, *rows))]
    assert as_lines[0][1].calls[0].arguments == '{"city": "X"}'
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert [item.conversation.messages for item in read(str(tmp_path / "rows.parquet"))] == as_lines
    datasets.Dataset(table).save_to_disk(tmp_path / "set")
    assert [item.conversation.messages for item in read(f"hub:{tmp_path / 'set'}")] == as_lines


def test_a_first_row_without_a_text_hides_no_other_column(tmp_path):
    settings = DataSettings(skip_empty=True)
    for first in ({"text": None}, {"text": None, "bot": None}, {"bot": "c"}):
        rows, notes = [first, {"text": "a", "bot": "b"}], Counter[str]()
        list(stream_conversations(jsonl(tmp_path, *rows), settings, notes))
        assert notes["'bot' is not read: data.columns.messages names no such turn"] == 1


def test_a_hub_data_set_with_class_numbers(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ok", "violation"])}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    datasets.DatasetDict({"train": data, "held": data.select([1])}).save_to_disk(str(tmp_path / "saved"))
    columns = ColumnSettings(messages="text")
    assert [r.labels["p"] for r in read(f"hub:{tmp_path}/saved", columns=columns)] == ["ok", "violation"]
    (held,) = read(f"hub:{tmp_path}/saved:held", columns=columns)
    assert held.conversation.messages == (Message("user", "b"),)
    with pytest.raises(DataError, match="no split 'test'; it has train, held"):
        read(f"hub:{tmp_path}/saved:test", columns=columns)


def test_the_columns_of_a_hub_data_set_are_found_by_its_first_rows(tmp_path):
    rows = {"conversations": [None, row()["messages"]], "text": ["a", "b"], "label": ["ok", "ok"]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "data")
    found = [item for _, item in stream_conversations(f"hub:{tmp_path / 'data'}")]
    assert [isinstance(item, Rejected) for item in found] == [True, False]
    assert roles(found[1].conversation) == ["user"]


def test_a_hub_data_set_from_a_folder_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set", row("a"), row("b", "violation"), name="train.jsonl")
    rows = read(f"hub:{tmp_path}/set")
    assert [item.conversation.messages[0].content for item in rows] == ["a", "b"]


@pytest.mark.parametrize("named", ["{home}/secret.txt", "../home/*.txt", "{home}/*", "own.txt", ".own/own.txt"])
def test_a_hub_data_set_does_not_lead_to_other_files(named, tmp_path, monkeypatch):
    """Its card may name any file of whoever reads it, and a link may be any."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret.txt").write_text("S3cr3t\n")
    (tmp_path / "set" / ".own").mkdir(parents=True)
    if named.endswith("own.txt"):
        (tmp_path / "set" / named).symlink_to(tmp_path / "home" / "secret.txt")
    files = named.format(home=tmp_path / "home")
    card = f'---\nconfigs:\n- config_name: default\n  data_files: "{files}"\n---\n'
    (tmp_path / "set" / "README.md").write_text(card)
    with pytest.raises(DataError, match=r"not a file of the data set|is a link"):
        read(f"hub:{tmp_path}/set")


@pytest.mark.parametrize("led", ["{home}/data-00000-of-00001.arrow", "../home/data-00000-of-00001.arrow"])
def test_a_saved_data_set_does_not_lead_to_other_files(led, tmp_path):
    for name in ("home", "set"):
        datasets.Dataset.from_dict({"text": [name], "label": ["ok"]}).save_to_disk(str(tmp_path / name))
    state = json.loads((tmp_path / "set" / "state.json").read_text())
    state["_data_files"] = [{"filename": led.format(home=tmp_path / "home")}]
    (tmp_path / "set" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="is not a file of the data set"):
        read(f"hub:{tmp_path}/set")


def test_a_hub_data_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    with pytest.raises(DataError, match="cannot be loaded"):
        read(f"hub:{tmp_path}/none")
    with pytest.raises(DataError, match="write hub:NAME"):
        read("hub:a:b:c:d")


@pytest.mark.parametrize("value", [row(), row()["messages"]], ids=["object", "list"])
def test_a_conversation_from_a_file_and_from_standard_input(tmp_path, monkeypatch, value):
    path = tmp_path / "talk.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(value).encode())
    assert read_conversation(str(path)).messages == (Message("user", "Hi"),)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert read_conversation("-") == Conversation("standard input", (Message("user", "Hi"),))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not JSON"),
        (b"{", "talk.json: not JSON: .*ends too early"),
        (b"3", "a row is an object"),
        (b"[]", "'messages' is empty"),
        (b"{}", "no column 'messages'"),
        (b'["Hi"]', "talk.json: message 1: is str 'Hi'"),
        (b'[{"role": "user", "content": "\\ud800"}]', "lone surrogate"),
        (b"\xff\xfe[", "not UTF-8"),
    ],
)
def test_what_is_no_conversation(tmp_path, content, complaint):
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read_conversation(str(path))
    with pytest.raises(DataError, match=r"No such file|Is a directory"):
        read_conversation(str(tmp_path))


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
    path.write_text(json.dumps(row("Hi")))  # as it is without any setting, whatever the rows of the recipe are called
    assert said(path, "dialogue").messages == (Message("user", "Hi"),)


def test_a_device_is_no_conversation_and_a_pipe_is_one(tmp_path):
    with pytest.raises(DataError, match="/dev/zero: is a device and no file"):
        read_conversation("/dev/zero")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(row("Hi")),))
    writer.start()
    assert read_conversation(str(pipe)).messages == (Message("user", "Hi"),)
    writer.join()


def test_what_is_read_has_an_end(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 11)
    assert read_whole(path, 11) == b"x" * 11
    with pytest.raises(OSError, match="is longer than"):
        read_whole(path, 10)


def test_parquet_that_unpacks_to_gigabytes_is_refused_by_its_size(tmp_path, monkeypatch):
    """A text that a dictionary holds once, in rows that take a few bytes each, also inside messages."""
    path = tmp_path / "rows.parquet"
    count = 10**4
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), ["y" * 10**5])
    inner = pyarrow.StructArray.from_arrays([texts], ["content"])
    for column in (texts, pyarrow.ListArray.from_arrays(pyarrow.array(range(count + 1), pyarrow.int32()), inner)):
        table = pyarrow.table({"messages": column})
        pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 20_000
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        monkeypatch.setattr(parquet, "LARGEST", 10**8)
        with pytest.raises(DataError, match=r"^\S+rows.parquet holds 0\.\d GiB and more when it is unpacked"):
            read(str(path))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000, "kilobytes"


def test_parquet_of_more_rows_than_are_read_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    monkeypatch.setattr(parquet, "MOST_ROWS", 1000)
    pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.nulls(10**6, pyarrow.string())}), path)
    with pytest.raises(DataError, match=r"rows.parquet holds 1000000 rows in \d+ bytes: no row takes less than one"):
        read(str(path))


def test_a_parquet_row_of_millions_of_values_is_refused_before_they_are_pythons(tmp_path):
    """Each message takes two bits in the file, and half a kilobyte as Python's."""
    path = tmp_path / "rows.parquet"
    count = 10**7
    parts = [pyarrow.nulls(count, pyarrow.string()), pyarrow.nulls(count, pyarrow.string())]
    messages = pyarrow.StructArray.from_arrays(parts, ["role", "content"])
    column = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), messages)
    pyarrow.parquet.write_table(pyarrow.table({"messages": column}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"rows.parquet holds \d+ values in 1 rows when it is unpacked"):
        read(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000, "kilobytes"


def test_parquet_with_two_columns_of_one_name_is_refused_by_the_name(tmp_path):
    path = tmp_path / "rows.parquet"
    columns = [pyarrow.array(["ok"]), pyarrow.array(["violation"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["label", "label"]), path)
    with pytest.raises(DataError, match=r"rows.parquet: the column 'label' is there twice"):
        read(str(path))


def test_parquet_gives_every_kind_of_value_as_it_is(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [
        {"messages": [{"role": "user", "content": "a"}], "label": "ok", "n": 1, "x": 0.5, "big": b"b", "t": True},
        {"messages": None, "label": None, "n": None, "x": None, "big": None, "t": None},
        {
            "messages": [{"role": "user", "content": "é" * 9}] * 3,
            "label": "ok",
            "n": 2,
            "x": 2.5,
            "big": b"",
            "t": False,
        },
    ] * 700
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [row.value for row in sources.read_rows(str(path), Findings())] == rows


@pytest.mark.parametrize(
    ("written", "label_map"),
    [
        ("refuse\u0301", {}),
        ("REFUSÉ ", {}),
        ("ｒｅｆｕｓé", {}),
        ("Ｙｅｓ", {"yes": "refusé"}),
        (" Yes", {"yes": "refusé"}),
        ("YES", {"yes": "refusé", "Yes ": "refusé"}),
    ],
)
def test_a_label_in_other_capitals_blanks_accents_or_widths_is_read_with_a_note(tmp_path, written, label_map):
    policy, findings = Policy("p", "T", "R", labels=("refusé", "ok")), Findings()
    settings = DataSettings(label_map=label_map)
    found = read_labelled(jsonl(tmp_path, row(label=written), row()), settings, policy, findings)
    assert found[0].labels == {"p": "refusé"}
    assert findings.notes == {f"label {written!r} is read as refusé": 1}


@pytest.mark.parametrize("label_map", [{"yes": "refusé", "Yes": "ok"}, {"yes": "Refused"}, {}])
def test_a_label_that_could_be_two_or_none_is_refused_with_its_exact_key(tmp_path, label_map):
    policy = Policy("p", "T", "R", labels=("refusé", "ok"))
    with pytest.raises(DataError, match=r"label 'YES ' is not one of .*'data.label_map=\{\"YES \": LABEL\}'"):
        read_labelled(jsonl(tmp_path, row(label="YES "), row()), DataSettings(label_map=label_map), policy)


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


def test_a_policy_column_in_other_capitals_is_one(tmp_path):
    (tmp_path / "train.csv").write_text("Text,Policy,Label\na,q,violation\nb,p,ok\n")
    assert [item.conversation.messages[0].content for item in read(str(tmp_path / "train.csv"))] == ["b"]
    rows = read_multilabelled(str(tmp_path / "train.csv"), DataSettings(), [POLICY, OTHER])
    assert [item.labels for item in rows] == [{"q": "violation"}, {"p": "ok"}]


def test_labels_that_are_not_read_are_noted(tmp_path):
    findings = Findings()
    labels = ({}, {"p": "ok"}, {"P": "ok"}, {"p": None, "P": "ok"}, {"q": "ok"})
    rows = [row(str(number), labels=of) for number, of in enumerate(labels)]
    rows += [row("none", None, labels={}), row("theirs", policy="q", labels={})]
    read_multilabelled(jsonl(tmp_path, *rows), DataSettings(), [POLICY], findings=findings)
    assert findings.notes == {
        "'label' is not read next to 'labels', which has no label of 'p'": 4,
        "'P' in 'labels' is not read: the policy is 'p'": 2,
    }
    findings = Findings()
    rows = [row("a", policy="q", labels={"p": "ok"}), row("b", policy="p", labels={"p": "ok"})]
    read_multilabelled(jsonl(tmp_path, *rows), DataSettings(), [POLICY, OTHER], findings=findings)
    assert findings.notes == {"'label' is not read next to 'labels', which has no label of 'q'": 1}


@pytest.mark.parametrize(
    "of", [{"labels": {"p": "ok"}, "verdicts": {}}, {"label": "ok", "policy": "p", "generated": {}}]
)
def test_the_labels_of_rows_that_alora_wrote_are_the_policys_own_words(tmp_path, of):
    written = {"messages": [{"role": "user", "content": "a"}], **of}
    path = jsonl(tmp_path, written, row("b", "ok"), row("c", "bad"))
    found = read(path, label_map={"ok": "violation", "violation": "ok", "bad": "violation"})
    assert [item.labels["p"] for item in found] == ["ok", "violation", "violation"]


def test_a_group_is_the_same_with_and_without_the_fraction_of_a_table_with_gaps(tmp_path):
    path = jsonl(tmp_path, *(row(c=c) for c in (7, 7.0, "7", " 7.0", "7.5", None, float("nan"))))
    rows = read(path, columns=ColumnSettings(group="c"))
    assert [item.group for item in rows] == ["7", "7", "7", "7", "7.5", "", ""]


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


@pytest.mark.parametrize(
    ("line", "share", "told"),
    [
        ("Bot: wait", 1, True),  # a speaker, be it once
        ("Agent Ann: hello", 1, True),
        ("Agent (Ann): hello", 1, True),
        ("[10:00] Supervisor: hello", 1, True),
        ("Agent #2: hello", 1, True),
        ("Agent [10:00]: hello", 1, True),
        ("**Bot:** hello", 1, True),
        ("- [Bot] : hello", 1, True),
        ("O'Brien: hello", 1, True),
        ("sales@shop.com: hello", 1, True),
        ("I have just one question: when?", 20, False),
        ("see https://x.y: z", 20, False),
        ("Agent: hello", 20, False),
    ],
)
def test_who_speaks_within_the_turns_of_transcripts_is_told(tmp_path, line, share, told):
    rows = [f"Customer: hi\n{line if number < share else 'well'}\nAgent: sure" for number in range(20)]
    notes = Counter[str]()
    settings = DataSettings(
        columns=ColumnSettings(messages="chat"), role_map={"Customer": "user", "Agent": "assistant"}
    )
    found = [
        row for _, row in stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes)
    ]
    assert len(found) == 20
    assert sum(times for note, times in notes.items() if "are part of the turn before them" in note) == told * share
    (tmp_path / "one.json").write_text(json.dumps({"chat": "Customer: hi\nBot: wait\nAgent: sure"}))
    notes.clear()
    read_conversation(str(tmp_path / "one.json"), settings, notes)
    assert notes["lines that open with 'Bot' are part of the turn before them: data.role_map has no such speaker"] == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Visitor: hi\nBot: hello", "Visitor"),
        ("Customer Bob: hi", "Customer ..."),
        ("Customer says: hi", "Customer ..."),
        ("**Customer**: hi", "Customer ..."),
        ("hello", ""),
    ],
)
def test_texts_that_no_speaker_opens_are_counted(tmp_path, line, name):
    text = "a text is one message: its first line opens with no speaker of data.role_map, spelt so"
    note = f"{text}; some open with '{name}'" if name else text
    settings = DataSettings(
        columns=ColumnSettings(messages="chat"), role_map={"Customer": "user", "Agent": "assistant"}
    )

    def counted(*chats):
        notes = Counter[str]()
        assert list(stream_conversations(jsonl(tmp_path, *({"chat": chat} for chat in chats)), settings, notes))
        return sum(times for found, times in notes.items() if found.startswith(text)), notes[note]

    split, opened = "Customer: hi\nAgent: hello", "Chat started\nAgent: hello"
    assert counted(split, line, line) == (2, 2)
    assert counted(opened, line) == (1, 1)  # the other has a note of its own
    assert counted(split, opened) == (0, 0)
    assert counted(line) == (0, 0)  # as no text is of a speaker
    assert counted(split, line, [{"role": "user", "content": line}]) == (1, 1)
    assert counted([{"role": "user", "content": line}], line) == (0, 0)
    (tmp_path / "one.json").write_text(json.dumps({"chat": line}))
    notes = Counter[str]()
    read_conversation(str(tmp_path / "one.json"), settings, notes)
    assert notes == {note: 1, "column 'chat' is read as user": 1}
    settings.role_map = {"chat": "user"}
    assert counted(line) == (0, 0)
    notes.clear()
    read_conversation(str(tmp_path / "one.json"), settings, notes)
    assert notes == {"role 'chat' is read as user": 1}


def test_a_file_that_no_speaker_opens_is_told_next_to_one_that_is_split(tmp_path):
    settings = DataSettings(columns=ColumnSettings(messages="chat"), role_map={"Agent": "assistant"})
    notes = Counter[str]()
    for chat in ("Agent: hello", "Bot: hello"):
        assert list(stream_conversations(jsonl(tmp_path, {"chat": chat}), settings, notes))
    assert [note for note in notes if "one message" in note and note.endswith("some open with 'Bot'")]


def test_who_speaks_is_told_among_thousands_of_other_names(tmp_path, monkeypatch):
    monkeypatch.setattr(openers, "_MOST", 50)
    rows = [f"Customer: hi\nOrder {number} sent: yes\nAgent: sure" for number in range(400)]
    rows += [
        f"{text}\n{'Bot' if number == 300 else 'Supervisor'}: hm"
        for number, text in enumerate(rows[:400])
        if number % 75 == 0
    ]
    names = [f"{letter}{letter}" for letter in "abcdefghijklmnopqrstuvw"]
    rows[:0] = ["\n".join(f"{name}: hi" for name in names)] * 500
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Customer": "user", "Agent": "assistant", **dict.fromkeys(names, "user")}
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes))
    assert not [note for note in notes if "Supervisor" in note]  # five of 900
    rows += [f"Customer: hi\nSupervisor: {number}" for number in range(9)]
    notes.clear()
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes))
    text = "lines that open with 'Bot', 'Supervisor' are part of the turn before them"
    assert notes[f"{text}: data.role_map has no such speaker"] == 14
    assert len(notes) > 20
    assert any(text in line for line in as_lines(notes))


def test_labels_that_are_a_number_next_to_a_key_of_generate_are_refused(tmp_path):
    row = {"messages": [{"role": "user", "content": "x"}], "label": "ok", "generated": {}, "labels": 3}
    with pytest.raises(DataError, match="LABELS_KIND"):
        read(jsonl(tmp_path, row))


@pytest.mark.parametrize(
    "speaker", ["Visitor ", "Customer # ", "Chat bot nr. ", "Agent", "Guest", "user_", "Caller (555) 123-"]
)
def test_a_speaker_with_a_number_of_its_own_in_each_transcript_is_told(tmp_path, speaker):
    rows = [f"Agent: hi\n{speaker}{number}: it broke\nAgent: sure" for number in range(200)]
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Agent": "assistant"}
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes))
    name = speaker.rstrip(" #.-_()0123456789") + " ..." * (speaker == "Agent")
    text = f"lines that open with '{name}' are part of the turn before them: data.role_map has no such speaker"
    assert notes[text] == 200


@pytest.mark.parametrize(
    ("roles", "opener", "name"),
    [
        ({"Anna": "user"}, "4711", "a number"),
        ({"0": "user", "1": "assistant"}, "2", "a number"),
        ({"0": "user", "1": "assistant"}, "10", "a number"),
        ({"SPEAKER_00": "user"}, "SPEAKER_02", "SPEAKER ..."),
    ],
)
def test_a_name_of_digits_is_told(tmp_path, roles, opener, name):
    path = jsonl(tmp_path, {"chat": f"{next(iter(roles))}: hi\n{opener}: it broke"})
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"), role_map=roles)
    assert list(stream_conversations(path, settings, notes))
    assert notes[f"lines that open with '{name}' are part of the turn before them: data.role_map has no such speaker"]


def test_hours_are_no_speakers_and_hide_none(tmp_path):
    hours = "\n".join(f"{hour}:00-{hour}:30" for hour in range(8, 18))
    rows = [f"Agent: we have\n{hours}\nCustomer: 9\nDr Weber: take two" for _ in range(3)]
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Agent": "assistant", "Customer": "user"}
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes))
    text = "lines that open with 'Dr Weber' are part of the turn before them: data.role_map has no such speaker"
    assert notes[text] == 3
    assert not [note for note in notes if note.startswith("lines") and note != text]


def test_of_many_speakers_a_note_says_how_many_more_there_are(tmp_path):
    rows = ["Agent: hi\n" + "\n".join(f"{letter}{letter}: hm" for letter in "jihgfedcba")] * 2
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Agent": "assistant"}
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in rows)), settings, notes))
    assert [note for note in notes if "'aa', 'bb', 'cc', 'dd', 'ee', 'ff', 'gg', 'hh' and 2 more are part of" in note]


def test_names_of_a_speaker_with_numbers_count_as_one_and_take_no_memory(tmp_path, monkeypatch):
    """Counted by one, ten thousand names were looked through again with every row."""
    monkeypatch.setattr(openers, "_MOST", 5)
    looked, told = [], openers.Openers._told
    monkeypatch.setattr(openers.Openers, "_told", lambda self: looked.append(self) or told(self))
    lines = [f"Agent {number}: hi\n" + "\n".join(f"{number}{letter}: x" for letter in "ab") for number in range(60)]
    path = jsonl(tmp_path, *({"chat": f"Customer: hi\n{line}"} for line in lines))
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Customer": "user", "Agent": "assistant"}
    assert list(stream_conversations(path, settings, notes))
    assert max(notes[note] for note in notes if note.startswith("lines that open with 'Agent ...'")) == 60
    assert len(looked) < 60


def test_cells_of_a_tsv_that_swallow_rows_are_noted(tmp_path):
    (tmp_path / "train.tsv").write_text('text\tlabel\n"Hi\tok\nb\tviolation\nc"\tok\n')
    findings = Findings()
    assert len(read_labelled(str(tmp_path / "train.tsv"), DataSettings(), POLICY, findings)) == 1
    assert [note for note in findings.notes if "it may be several rows" in note]


def test_a_label_in_a_column_policy_is_no_policys_name(tmp_path):
    path = jsonl(tmp_path, {"text": "a", "Policy": "violation"}, {"text": "b", "Policy": "ok"})
    rows = read(path, columns=ColumnSettings(messages="text", label="Policy"))
    assert [item.labels["p"] for item in rows] == ["violation", "ok"]
    path = jsonl(tmp_path, row("a", Policy="4711"), row("b", Policy="4712"))
    assert [item.group for item in read(path, columns=ColumnSettings(group="Policy"))] == ["4711", "4712"]


def test_a_label_of_a_users_own_in_a_row_of_alora_is_mapped(tmp_path):
    written = {"messages": [{"role": "user", "content": "a"}], "labels": {"p": None}, "verdicts": {}, "mine": "ok"}
    named = ColumnSettings(label="mine")
    (found,) = read(jsonl(tmp_path, written), columns=named, label_map={"ok": "violation", "violation": "ok"})
    assert found.labels["p"] == "violation"
