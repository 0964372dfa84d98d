"""Messages of every dialect become the same ones, and what was read otherwise is noted."""

import itertools
import json
import math
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import STAYS_ONE, STAYS_WITHIN, spoken, unsplit_speakers
from alora.data.columns import find_columns, note_unread
from alora.data.conversation import Rejected, stream_conversations
from alora.data.labelled import read_labelled
from alora.data.messages import Message, ToolCall, conversation_of
from alora.errors import DataError
from alora.findings import Findings
from alora.policy import Policy

PHOTO = {"type": "image_url", "image_url": {"url": "x"}}


def read(row, **settings):
    findings = Findings()
    known = DataSettings(**settings)
    usual = known.columns.messages == ColumnSettings.messages
    known.columns = find_columns(known.columns, [row], findings)
    if usual:
        note_unread(known.columns, row, findings, set())
    return conversation_of(row, "f:1", known, findings), findings


def messages(*items, **settings):
    conversation, findings = read({"messages": list(items)}, **settings)
    assert findings.count == 0, findings.all()
    return conversation.messages, findings


def test_an_agent_s_conversation_as_openai_logs_it():
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    found, findings = messages(
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "name": "ann",
            "content": [{"type": "text", "text": "Find x,"}, {"type": "text", "text": "please"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": None, "function_call": {"name": "pay", "arguments": {"sum": 3}}},
        {"role": "function", "name": "pay", "content": {"ok": True}},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": None},
    )
    assert found == (
        Message("system", "Be kind."),
        Message("user", "Find x,\nplease", "ann"),
        Message("assistant", "", calls=(ToolCall("search", '{"q": "x"}'),)),
        Message("tool", "found", "search"),
        Message("assistant", "", calls=(ToolCall("pay", '{"sum": 3}'),)),
        Message("tool", '{"ok": true}', "pay"),
        Message("assistant", "No."),
    )
    assert found[2].text == '[calls search {"q": "x"}]'
    assert findings.notes == {"role 'developer' is read as system": 1, "role 'function' is read as tool": 1}


def test_sharegpt():
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}, {"from": "observation", "value": "4"}]
    conversation, findings = read({"conversations": turns})
    assert conversation.messages == (Message("user", "Hi"), Message("assistant", "Ho"), Message("tool", "4"))
    assert "messages are read from data.columns.messages=conversations" in findings.notes


def test_a_label_in_other_capitals_is_read_and_noted():
    _, findings = read({"messages": [], "Label": "ok", "ID": "x"})
    assert set(findings.notes) == {"label is read from data.columns.label=Label", "id is read from data.columns.id=ID"}


def test_a_named_column_comes_before_the_same_name_in_other_capitals():
    row = {"Text": "human", "text": "machine", "Label": "ok", "label": "violation", "ID": "ticket-7", "id": 0}
    columns, findings = ColumnSettings(messages="Text", label="Label", id="ID"), Findings()
    assert find_columns(columns, [row], findings) == columns
    columns = ColumnSettings(messages="Text,text")
    assert find_columns(columns, [row], findings).messages == "Text,text"
    assert not findings.notes


def test_roles_in_other_words():
    found, findings = messages(
        {"role": "USER", "content": "a"}, {"role": "Kundin", "content": "b"}, role_map={"Kundin": "user"}
    )
    assert [message.role for message in found] == ["user", "user"]
    assert findings.notes == {"role 'USER' is read as user": 1, "role 'Kundin' is read as user": 1}
    _, wrong = read({"messages": [{"role": "Kundin", "content": "b"}]})
    assert [finding.code for finding in wrong.all()] == ["ROLE_UNKNOWN"]


def test_images_are_refused_or_left_out_and_noted():
    message = {"role": "user", "content": [{"type": "text", "text": "See"}, PHOTO]}
    conversation, findings = read({"messages": [message]})
    assert conversation is None
    assert [finding.code for finding in findings.all()] == ["CONTENT_PART"]
    assert "'image_url'" in findings.all()[0].problem
    found, findings = messages(message, skip_media=True)
    assert found == (Message("user", "See"),)
    assert findings.notes == {"a part of type 'image_url' is left out (data.skip_media)": 1}
    found, findings = messages({"role": "user", "content": "See", "images": ["x"]}, skip_media=True)
    assert found == (Message("user", "See"),)
    assert findings.notes == {"'images' next to its text is left out (data.skip_media)": 1}


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
    conversation, findings = read(row)
    assert [message.role for message in conversation.messages] == roles
    blank = [f"nothing is in column {name!r}, so the row has a message less" for name in row if row[name] is None]
    assert len(findings.notes) == 1 + len(blank) + ("system" in row)
    assert findings.notes.keys() >= {*blank}


def test_a_row_without_any_text_is_a_finding_and_no_note():
    _, findings = read({"chat": ""}, columns=ColumnSettings(messages="chat"))
    assert [finding.code for finding in findings.all()] == ["EMPTY"]
    assert not findings.notes


@pytest.mark.parametrize("cell", [str([{"role": "user", "content": "Hi"}]), '[{"from": "human", "value": "H'])
@pytest.mark.parametrize("column", ["messages", "chat"])
def test_messages_as_python_prints_them_are_no_text(cell, column):
    conversation, findings = read({column: cell}, columns=ColumnSettings(messages=column))
    assert conversation is None
    (finding,) = findings.all()
    assert finding.code == "MESSAGES_KIND"
    assert "as JSON, by json.dumps" in finding.problem


TURNS = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TURNS},
        {"messages": json.dumps(TURNS)},
        {"conversations": [{"from": "human", "value": "Hi"}]},
    ],
)
def test_a_system_text_next_to_a_list_of_messages_is_the_first_of_them(row):
    conversation, findings = read(row | {"system": "Be kind."})
    assert conversation.messages == (Message("system", "Be kind."), Message("user", "Hi"))
    (name,) = row
    assert findings.notes[f"'system' is read as the first message, before {name!r}"] == 1
    for blocks in ([{"text": "Be kind."}], [{"type": "text", "text": "Be"}, "kind."], '[{"text": "Be kind."}]'):
        first, user = read(row | {"system": blocks})[0].messages
        assert (first.role, first.content.split(), user.content) == ("system", ["Be", "kind."], "Hi")
    for text in ('{"tone": "kind"}', "[Be kind.]"):
        assert read(row | {"system": text})[0].messages[0] == Message("system", text)
    assert read(row | {" System": "Be kind."})[0].messages[0] == Message("system", "Be kind.")
    assert read(row | {"SYSTEM": "SAP", "system": "Be kind."})[0].messages[0] == Message("system", "Be kind.")
    (finding,) = read(row | {"system": [{"cachePoint": {"type": "default"}}]})[1].all()
    assert "'system': content holds dict {'cachePoint'" in f"{finding.where}: {finding.problem}"
    for nothing in ("", None):
        assert read(row | {"system": nothing, "System": "Be kind."})[0].messages[0] == Message("system", "Be kind.")
    chat = {"messages": "Customer: hi\nAgent: hello", "system": "Be kind."}
    assert [m.role for m in read(chat, role_map=SPOKEN_BY)[0].messages] == ["system", "user", "assistant"]
    for name in ("text", "prompt"):
        conversation, findings = read({name: "Hi", "system": "Be kind."})
        assert [(m.role, m.content) for m in conversation.messages] == [("system", "Be kind."), ("user", "Hi")]
        assert not [note for note in findings.notes if "not read" in note]
    for nothing in ("", " ", None, 3, {"text": "Be kind."}, [], [{"text": ""}]):
        conversation, findings = read(row | {"system": nothing})
        assert conversation.messages == (Message("user", "Hi"),)
        assert findings.notes["'system' is not read: it is no text"] == (nothing == 3 or isinstance(nothing, dict))


@pytest.mark.parametrize("named", ["label", "labels", "id", "group", "time"])
def test_a_system_that_another_setting_names_is_no_message(named):
    conversation, findings = read(
        {"messages": TURNS, "system": "ok"}, columns=ColumnSettings(messages="messages", **{named: "system"})
    )
    assert conversation.messages == (Message("user", "Hi"),)
    assert not findings.notes


@pytest.mark.parametrize("role", ["system", "developer", "System"])
def test_two_system_messages_that_differ_are_refused(role):
    row = {"messages": [{"role": role, "content": "Be kind."}, *TURNS]}
    conversation, findings = read(row | {"system": "Be kind.\n"})
    assert findings.count == 0
    assert [message.role for message in conversation.messages] == ["system", "user"]
    _, findings = read(row | {"system": "Be rude."})
    (finding,) = findings.all()
    assert finding.code == "SYSTEM_DIFFERS"
    assert (
        finding.problem
        == "'system' differs from the system message in 'messages'; remove one of them, or rename the column"
    )
    _, findings = read({"messages": TURNS, "system": "\ud800"})
    assert [finding.code for finding in findings.all()] == ["NOT_UNICODE"]


def test_a_key_that_is_no_text_is_passed_over():
    for row in ({"messages": TURNS}, {"prompt": "Hi", "response": "Ho"}, {"text": "Hi"}):
        assert read({1: "x", None: "y", **row})[0] == read(row)[0]
    conversation, _ = read({1: "x", "prompt": "Hi"}, columns=ColumnSettings(messages="prompt,response"))
    assert conversation.messages == (Message("user", "Hi"),)


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
        _, findings = read(texts | more)
        assert list(findings.notes) == [f"{read_from}question,answer", *([rest + no_turn] if rest else [])]
    _, findings = read(texts | {"context": "c1"}, columns=ColumnSettings(group="context"))
    assert list(findings.notes) == [f"{read_from}question,answer"]
    named = ColumnSettings(messages="question,context,answer")
    conversation, findings = read(texts | {"context": "Docs."}, columns=named)
    assert [message.role for message in conversation.messages] == ["user", "user", "assistant"]
    assert not findings.notes
    _, findings = read({"conversations": [{"from": "human", "value": "Hi"}], "context": "Docs."})
    assert {f"{read_from}conversations", f"'context' is not read{no_turn}"} <= findings.notes.keys()
    for name, value in (
        ("generated_text", "Ho"),
        ("predictions", ["Ho"]),
        ("bot", "Ho"),
        ("body", "Ho"),
        ("thread", {"turns": TURNS}),
        ("generated", {}),
    ):
        _, findings = read({"messages": TURNS, name: value})
        noted = f"{name!r} is not read{no_turn}" if value else None
        assert list(findings.notes) == ([noted] if noted else [])
    for asked, answered in itertools.product(("prompt", "Instruction"), ("answer", "output", "response", "assistant")):
        conversation, findings = read({asked: "Hi", answered: "Ho", "text": ""})
        assert [(m.role, m.content) for m in conversation.messages] == [("user", "Hi"), ("assistant", "Ho")]
        assert list(findings.notes) == [f"{read_from}{asked},{answered}"]  # nothing is in 'text'
    for setting in ("label", "labels", "id"):
        for asked, answer in (("prompt", "answer"), ("Prompt", "Answer"), (" prompt", " answer ")):
            conversation, findings = read({asked: "Hi", answer: "no"}, columns=ColumnSettings(**{setting: "answer"}))
            assert conversation.messages == (Message("user", "Hi"),)
            assert f"{read_from}{asked}" in findings.notes
    _, findings = read({"Conversation": "c17", "prompt": "Hi", "response": "Ho"})
    assert list(findings.notes) == [f"{read_from}prompt,response", f"'Conversation' is not read{no_turn}"]
    conversation, _ = read({"conversation": "Customer: Hi"}, role_map=SPOKEN_BY)
    assert conversation.messages == (Message("user", "Hi"),)
    _, findings = read({"messages": TURNS, "system": "Be kind.", "Response": "Ho", "documents": [], "text": "?"})
    assert "'Response', 'text' are not read: data.columns.messages names no such turn" in findings.notes
    _, findings = read({"messages": TURNS, "response": "Ho"}, columns=ColumnSettings(label="response"))
    assert not findings.notes
    conversation, _ = read({"prompt": "Hi", "response": "Ho"}, columns=ColumnSettings(group="prompt"))
    assert [m.content for m in conversation.messages] == ["Hi", "Ho"]
    _, findings = read({"text": "Hi", "score": "0.1", "a": [1]}, columns=ColumnSettings(label="%policy%"))
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
    conversation, findings = read(row)
    assert conversation is None
    (finding,) = findings.all()
    assert finding.code == "COLUMN_MISSING"
    assert f"{', '.join(map(repr, row))} may be turns; set data.columns.messages=NAME,NAME, one" in finding.problem
    if meant is not None:
        conversation, _ = read(row, columns=ColumnSettings(messages=meant))
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
    conversation, _ = read(row, columns=ColumnSettings(group="user"))
    assert [m.content for m in conversation.messages] == ["Hi", "Ho"]
    assert read(row)[0] is None


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
    _, findings = read(row)
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
    assert not read(own)[1].notes
    _, findings = read(own | {"response": "Ho"})
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
    for row in ({"prompt": "real", "response": "r", "Prompt": "t"}, {"PROMPT": "t", "prompt": "real", "response": "r"}):
        assert read(row)[0].messages[0].content == "real"


def test_messages_in_one_of_several_text_columns_are_one_text_and_noted():
    note = "messages in column 'history', as JSON or as Python prints them, are read as one text"
    for messages in (json.dumps(TURNS), str(TURNS)):
        conversation, findings = read(
            {"history": messages, "response": "Ho"}, columns=ColumnSettings(messages="history,response")
        )
        assert conversation.messages == (Message("user", messages), Message("assistant", "Ho"))
        assert findings.notes[note] == 1
        _, findings = read(
            {"history": "[1]", "response": messages[:3]}, columns=ColumnSettings(messages="history,response")
        )
        assert not findings.notes
    columns = ColumnSettings(messages="chat")
    for written in (
        json.dumps({"messages": TURNS}),
        json.dumps(TURNS[0]),
        '{"choices": [{"message": {}}]}',
        str([{"timestamp": 1, **TURNS[0]}]),
        "array([{'id': 1, 'role': 'user'}])",
        json.dumps([{"type": "text", "text": "Hi"}])[:20],
    ):
        conversation, findings = read({"chat": written}, columns=columns)
        assert conversation.messages == (Message("user", written),)
        assert findings.notes == {note.replace("history", "chat"): 1, "column 'chat' is read as user": 1}
    blank = " " * 1_000_000 + "Hi"
    assert read({"chat": blank, "label": "ok"}, columns=columns)[0].messages == (Message("user", blank),), "at once"
    pasted = '[{"id": 1, "value": 3}] what is wrong with this?'
    assert read({"chat": pasted}, columns=columns)[1].notes == {"column 'chat' is read as user": 1}
    assert read({"text": pasted})[0].messages == (Message("user", pasted),)


@pytest.mark.parametrize(
    ("name", "told"), [("reply", 1), ("replies", 1), ("bot_to_customer", 1), ("chat", 1), ("response", 0)]
)
def test_what_a_lone_column_is_read_as_is_noted_unless_its_name_says_so(name, told):
    _, findings = read({name: "Hi"}, columns=ColumnSettings(messages=name))
    assert findings.notes == ({f"column {name!r} is read as user": 1} if told else {})


@pytest.mark.parametrize("key", ["conversation_id", "chatId", "thread_id"])
def test_a_list_of_several_conversations_messages_is_refused(key):
    def said(*ids):
        items = [{"role": "user", "content": "Hi", "turn": turn, key: one} for turn, one in enumerate(ids)]
        return read({"messages": items})[1].all()

    (finding,) = said("c1", "c1", "c2")
    assert finding.problem.startswith(f"{key!r} is 'c2', and another before; one row is one conversation")
    assert finding.where.endswith("message 3")
    assert not said("c1", "c1")
    assert not said(7, "7", None)
    for other in ("message_id", "conversation_part_id", "chat_user_id", "parent_thread_id", "ticket_comment_id"):
        assert not read({"messages": [{"role": "user", "content": "Hi", other: number} for number in "ab"]})[1].all()


def test_a_role_that_is_null_is_said_elsewhere():
    found, findings = messages({"role": None, "from": "human", "value": "Hi"})
    assert found == (Message("user", "Hi"),)
    assert findings.notes == {"role 'human' is read as user": 1}


def test_names_in_camel_case_have_words():
    turns = {"botResponse": "Ho", "userMessage": "Hi", "AIMessage": "Yo", "LLMAnswer": "Yes"}
    conversation, findings = read(turns, columns=ColumnSettings(messages=",".join(turns)))
    assert [(m.role, m.content) for m in conversation.messages] == [
        *(("assistant", "Ho"), ("user", "Hi"), ("assistant", "Yo"), ("assistant", "Yes"))
    ]
    assert findings.notes["column 'botResponse' is read as assistant"] == 1
    _, findings = read({"messages": TURNS, "modelId": "m", "modelResponse": "Ho"})
    assert findings.notes == {"'modelResponse', 'modelId' are not read: data.columns.messages names no such turn": 1}


def test_a_reference_may_be_an_answer_so_what_it_is_read_as_is_noted():
    _, findings = read({"question": "a", "reference": "b"}, columns=ColumnSettings(messages="question,reference"))
    assert findings.notes == {"column 'reference' is read as user": 1}


@pytest.mark.parametrize("value", [4, float("nan"), True])
def test_a_number_in_a_text_column_is_no_list_of_messages(value):
    conversation, findings = read({"question": "2 + 2?", "answer": value})
    assert conversation is None
    (finding,) = findings.all()
    assert finding.problem.endswith("; a turn in a column is a text: write it in quotes")


def test_a_map_of_columns_is_no_map_of_speakers_in_them():
    columns, role_map = ColumnSettings(messages="knowledge,question,answer"), {"knowledge": "user"}
    row = {"knowledge": "a", "question": "knowledge: b", "answer": "c"}
    conversation, findings = read(row, columns=columns, role_map=role_map)
    assert conversation.unsplit == ()
    assert findings.notes == {"role 'knowledge' is read as user": 1}


def test_a_system_column_is_the_first_message_before_texts_too():
    pair = {"prompt": "Hi", "response": "Ho"}
    for named in ({}, {"messages": "prompt,response"}):
        conversation, findings = read({"system": "Be kind.", **pair}, columns=ColumnSettings(**named))
        assert (conversation.messages[0].role, conversation.messages[0].content) == ("system", "Be kind.")
        assert findings.notes["'system' is read as the first message, before 'prompt,response'"] == 1
    named = ColumnSettings(messages="system,prompt,response")
    assert len(read({"system": "Be kind.", **pair}, columns=named)[0].messages) == 3
    conversation, findings = read({**pair, "text": "all of it"}, columns=named)
    assert [m.role for m in conversation.messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    "names", [("role", "content"), ("from", "value"), ("Role", "Content"), ("speaker", "content"), ("sender", "value")]
)
def test_a_message_a_row_is_no_conversation_a_row(names):
    row = dict(zip(names, ("assistant", "Hi"), strict=True)) | {"conversation_id": "c1", "turn": "1"}
    _, findings = read(row)
    (finding,) = findings.all()
    gather = "one row is one conversation: gather a conversation's turns into messages"
    assert finding.problem.endswith(f"; {gather}")
    assert "data.columns" not in finding.problem
    named = ColumnSettings(messages=names[1])
    conversation, findings = read(row, columns=named)
    assert conversation.messages == (Message("user", "Hi"),)
    read_as = {f"column {names[1]!r} is read as user": 1}
    assert findings.notes == {f"{names[0]!r} is not read: {gather}": 1} | read_as
    for sender in ("sender", "from"):
        mail = {sender: "ann@example.org", "subject": "Hello", "content": "Hi"}
        assert read(mail)[1].all()[0].problem.endswith("; set data.columns.messages=NAME, one for all rows of a file")
    assert read({"role": "Rep", "content": "Hi"})[1].all()[0].problem.endswith(f"; {gather}")
    assert (
        read(row | {names[0]: "Agent"}, columns=named)[1].notes == {f"{names[0]!r} is not read: {gather}": 1} | read_as
    )
    for other in (row | {names[0]: "ann"}, row | {names[0]: None}, {names[1]: "Hi"}):
        assert read(other, columns=named)[1].notes == read_as
    assert read(row, columns=ColumnSettings(messages=names[1], group=names[0]))[1].notes == read_as
    assert read(row | {names[0]: "Ann"}, columns=named, role_map={"Ann": "user"})[1].notes.keys() > read_as.keys()
    for other in ({"role": "user"}, {"content": "Hi"}, {"role": "user", "content": ["Hi"]}, {"role": 1, "value": "Hi"}):
        (finding,) = read(other)[1].all()
        assert finding.problem.endswith("; set data.columns.messages=NAME, one for all rows of a file")


def test_messages_as_python_prints_them_are_one_finding(tmp_path):
    chats = tmp_path / "chats.jsonl"
    cells = [str([{"role": "user", "content": f"talk {number}"}]) for number in range(30)]
    chats.write_text("".join(json.dumps({"chat": cell, "label": "ok"}) + "\n" for cell in cells))
    with pytest.raises(DataError) as caught:
        read_labelled(str(chats), DataSettings(columns=ColumnSettings(messages="chat")), Policy("p", "T", "R"))
    (finding,) = caught.value.findings
    assert finding.count == 30
    assert finding.where.startswith("chats.jsonl:1: 'chat' is str")


def test_a_text_may_begin_as_a_list():
    conversation, findings = read({"chat": "[{'a': 1}] fails"}, columns=ColumnSettings(messages="chat"))
    assert findings.count == 0
    assert conversation.messages == (Message("user", "[{'a': 1}] fails"),)


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


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"role": "user", "content": [{"type": "image_url", "text": "harmless", "image_url": {"url": "x"}}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "harmless", "image_url": {"url": "x"}}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "harmless", "image_url": None}]}, "harmless"),
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "I will not."),
        ({"role": "assistant", "content": "a", "refusal": "I will not."}, "a\nI will not."),
        ({"role": "assistant", "content": "a", "refusal": None, "audio": None, "images": []}, "a"),
        ({"role": "assistant", "content": "a", "audio": {"id": "1", "transcript": "b"}}, None),
        ({"role": "user", "content": "a", "images": ["data:"]}, None),
        ({"role": "user", "content": "a", "image_url": {"url": "x"}}, None),
        ({"role": "user", "content": "a", "input_audio": {"data": "x"}}, None),
        ({"role": "user", "content": [{"type": "text", "text": "harmless", "images": ["x"]}]}, None),
        ({"role": "user", "content": [{"type": "text", "text": "a", "refusal": "b"}]}, "a\nb"),
        (
            {"role": "assistant", "content": "a", "function_call": {"name": "f"}, "tool_calls": [{"name": "g"}]},
            "a\n[calls g {}]\n[calls f {}]",
        ),
    ],
)
def test_nothing_is_left_out_because_something_else_is_there(item, text):
    conversation, findings = read({"messages": [item]})
    assert (text if conversation is None else conversation.messages[0].text) == text
    assert [finding.code for finding in findings.all()] == (["CONTENT_PART"] if text is None else [])


CALLED = '[calls f {"a": 1}]'
SENT = {  # by the SDKs' types and dumps: OpenAI's 3.51, Anthropic's 2.10, LangChain's 1.4, LiteLLM's 1.106
    "OpenAI: an assistant's message, dumped": (
        {"role": "assistant", "content": "a", "refusal": None, "annotations": [{"url_citation": {"title": "t"}}],
         "audio": None, "function_call": None, "tool_calls": None, "parsed": {"a": "a"}}, "a"),
    "OpenAI: a part": (
        {"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "x"}}]}, "a"),
    "OpenAI: a tool call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "index": 0,
         "function": {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}}}]}, CALLED),
    "Gemini behind OpenAI's API: a tool call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "extra_content": {"google": {"s": "o"}},
         "provider_specific_fields": {"thought_signature": "o"}, "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        CALLED),
    "a log: ids and dates of a message": (
        {"role": "user", "content": "a", "message_id": "m", "thread_id": "t", "object": "thread.message", "uuid": "u",
         "createdAt": "2026-01-02", "finish_reason": "stop", "lang": "en", "metadata": {"a": "b"}}, "a"),
    "OpenAI: a custom tool's call": (
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x y"}}]},
        "[calls f x y]"),
    "OpenAI: an item of Responses": (
        {"id": "m", "type": "message", "role": "assistant", "status": "completed", "phase": "final_answer",
         "content": [{"type": "output_text", "text": "a", "annotations": [{"t": "u"}], "logprobs": [{"t": "a"}]}]},
        "a"),
    "Anthropic: an answer, dumped": (
        {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn", "container": None,
         "stop_sequence": "x", "usage": {"input_tokens": 1}, "content": [{"type": "text", "text": "a",
         "citations": [{"cited_text": "t"}], "cache_control": {"type": "ephemeral"}}]}, "a"),
    "Anthropic: a block as a tool call": (
        {"role": "assistant", "tool_calls": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1},
         "caller": {"type": "direct"}, "toolset_name": "t", "cache_control": None}]}, CALLED),
    "LangChain: a message, dumped, with a role": (
        {"role": "assistant", "content": "a", "additional_kwargs": {"refusal": None}, "name": None, "id": "run-1",
         "response_metadata": {"model_name": "m"}, "type": "ai", "invalid_tool_calls": [], "usage_metadata": {"n": 1},
         "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}]}, f"a\n{CALLED}"),
    "LiteLLM: a message, dumped": (
        {"role": "assistant", "content": "a", "tool_calls": None, "function_call": None,
         "provider_specific_fields": {"refusal": None}}, "a"),
    "Llama: parameters": (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "parameters": {"a": 1}}}]}, CALLED),
    "ShareGPT: a weight, and a table's empty columns": (
        {"from": "gpt", "value": "a", "weight": 0, "content": None, "tool_calls": [], "thoughts": " "}, "a"),
    "a log: a time and a flag": ({"role": "user", "content": "a", "timestamp": "2026-01-01", "toxic": False}, "a"),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_what_sdks_and_logs_put_next_to_a_text_is_no_obstacle(name):
    item, text = SENT[name]
    (found,), _ = messages(item)
    assert found.text == text


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ({"value": "b"}, "value"),
        ({"text": "b"}, "text"),
        ({"parts": [{"text": "b"}]}, "parts"),
        ({"reasoning_content": "b"}, "reasoning_content"),
        ({"additional_kwargs": {"reasoning_content": "b"}}, "additional_kwargs"),
        ({"refusal": {"text": "b"}}, "refusal"),
        ({"from": "b"}, "from"),
        ({"content": [{"type": "text", "text": "a", "input": "b"}]}, "input"),
        ({"content": [{"type": "tool_result", "text": "a", "content": "b"}]}, "content"),
    ],
)
def test_a_text_that_would_be_lost_stops_the_row_or_is_left_out_and_noted(item, key):
    item = {"role": "user", "content": "a", **item}
    conversation, findings = read({"messages": [item], "text_of_the_row": "metadata"})
    assert conversation is None
    (finding,) = findings.all()
    assert (finding.code, finding.where) == ("CONTENT_PART", "f:1: message 1")
    assert finding.problem.startswith(f"content holds {key!r} next to its text")
    found, findings = messages(item, skip_media=True)
    assert found == (Message("user", "a"),)
    assert findings.notes == {f"{key!r} next to its text is left out (data.skip_media)": 1}


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ({"name": "f", "arguments": {"a": 1}, "args": {"b": 2}}, "'args'"),
        ({"name": "f", "arguments": "{}", "params": {"b": 2}, "note": "c"}, "'params', 'note'"),
        ({"function": {"name": "f", "arguments": "{}"}, "input": "b"}, "'input'"),
        ({"function": {"name": "f"}, "custom": {"name": "g", "input": "b"}}, "'custom'"),
    ],
)
def test_a_tool_call_of_which_a_part_would_be_lost_is_refused(call, keys):
    for settings in ({}, {"skip_media": True}):
        item = {"role": "assistant", "tool_calls": [call, {"name": "g", "args": {}, "arguments": None}]}
        conversation, findings = read({"messages": [item]}, **settings)
        assert conversation is None
        (finding,) = findings.all()
        assert finding.code == "TOOL_CALL"
        assert finding.problem == f"a tool call has {keys} next to its arguments; make it one of them"


def test_columns_that_are_named_or_called_messages_are_not_looked_for():
    row = {"messages": [{"role": "user", "content": "a"}], "text": "other", "mine": "third"}
    conversation, findings = read(row)
    assert conversation.messages == (Message("user", "a"),)
    assert findings.notes == {"'text', 'mine' are not read: data.columns.messages names no such turn": 1}
    conversation, findings = read(row, columns=ColumnSettings(messages="mine"))
    assert conversation.messages == (Message("user", "third"),)
    assert findings.notes == {"column 'mine' is read as user": 1}


def test_messages_packed_as_json_in_a_text():
    conversation, _ = read({"messages": '[{"role": "user", "content": "a"}]'})
    assert conversation.messages == (Message("user", "a"),)


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": [{"function": {"name": ["x"]}}]},
        {"role": "assistant", "tool_calls": [3]},
        {"role": "tool", "content": "x", "name": 3},
        {"role": "tool", "content": "x", "name": "\ud800"},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "\ud800"}]},
        {"role": ["user"], "content": "x"},
        {"from": "human"},
        {"role": "user", "content": [{"text": 3}]},
        {"role": "user", "content": {"a": 1}},
    ],
)
def test_what_is_no_message(item):
    conversation, findings = read({"messages": [item, {"role": "user", "content": "Hi"}]})
    assert conversation is None
    assert findings.count == 1
    assert findings.all()[0].where == "f:1: message 1"


TRANSCRIPT = "Agent: Hello!\nHow are you?\r\n\n Customer: see http://a.b\nand Agent: too\nAgent:"


def test_a_transcript_in_one_cell_is_turns_where_the_settings_name_its_speakers():
    columns = ColumnSettings(messages="chat")
    conversation, _ = read({"chat": TRANSCRIPT}, columns=columns, role_map={"Agent": "assistant", "Customer": "user"})
    assert conversation.messages == (
        Message("assistant", "Hello!\nHow are you?"),
        Message("user", "see http://a.b\nand Agent: too"),
        Message("assistant", ""),
    )
    for role_map, text in (({}, TRANSCRIPT), ({"Agent": "assistant"}, "As Agent: said"), ({"A.": "user"}, "AB: c")):
        conversation, _ = read({"chat": text}, columns=columns, role_map=role_map)
        assert conversation.messages == (Message("user", text),)


STAMPS = (
    *("[10:00] ", "(10:00) ", "10:00:05 ", "2024-05-01 10:00 ", "[2024-05-01T10:00Z] ", "[10:00]", " 01.05.2024 "),
    *(
        "[5/1/24, 10:00:05\u202fPM] ",
        "5/1/24, 10:00 - ",
        "10:00 – ",
        "[10:00 AM, 5/1/2024] ",
        "2024-05-01 10:00:05.123+02:00\t",
        "\u200e[10:00] ",
        "2024-05-01 10:00:05 | ",
        "Mon 10:00 ",
        "[Tuesday, 10:00] ",
        "Wed. 2024-05-01 10:00 - ",
    ),
)


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_time_stamp_before_a_speaker_is_no_part_of_the_text(stamp):
    text = f"{stamp}Bot: Hello!\n10:00 it is\n[x] Bot: me\n{stamp}Caller: 10:01 Bot: hi"
    columns, roles = ColumnSettings(messages="chat"), {"Bot": "assistant", "Caller": "user"}
    conversation, _ = read({"chat": text}, columns=columns, role_map=roles)
    assert conversation.messages == (
        Message("assistant", "Hello!\n10:00 it is\n[x] Bot: me"),
        Message("user", "10:01 Bot: hi"),
    )


def test_what_stands_before_a_speaker_and_is_no_time_stamp_is_text():
    for before in (
        "10:00",
        "[a] ",
        "1.1 ",
        "1.2.3 ",
        "10 ",
        "http://",
        "10:00 then ",
        "[10:00 ",
        "10:00: ",
        "Mon ",
        "On Mon 10:00 ",
    ):
        text = f"{before}Bot: hi"
        conversation, _ = read({"chat": text}, columns=ColumnSettings(messages="chat"), role_map={"Bot": "assistant"})
        assert conversation.messages == (Message("user", text),)


CHAT = "{}Customer: hi\n{}Agent: hello"
SPOKEN_BY = {"Customer": "user", "Agent": "assistant"}


@pytest.mark.parametrize(
    "text",
    [
        "My agent said Agent: no",
        "Ask the Agent: no",
        "Reagent: no\nhttp://x/ Agents: no",
        "Agent://x",
        *("hello", "", "Agent", "1 Agent", f"{'1' * 41} Agent: no"),
    ],
)
def test_a_text_that_merely_names_a_speaker_is_no_transcript(text):
    conversation, findings = read({"chat": text or "x"}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    assert conversation.unsplit == ()
    assert STAYS_ONE not in findings.notes


@pytest.mark.parametrize("stamp", ["May 1, 2024 10:00 AM ", "**[10:00]** ", "[1714500000] ", "[00:00 --> 00:01]", "> "])
def test_a_transcript_that_opens_otherwise_stays_one_message_with_a_note(stamp):
    columns = ColumnSettings(messages="chat")
    for text in (CHAT.format(stamp, stamp), "Chat started by visitor\n" + CHAT.format("", "")):
        conversation, findings = read({"chat": text}, columns=columns, role_map=SPOKEN_BY)
        assert conversation.messages == (Message("user", text),)
        assert conversation.unsplit == ("Customer", "Agent")
        assert findings.notes == {STAYS_ONE: 1, "column 'chat' is read as user": 1}
    for text in (CHAT.format(stamp, stamp), "Chat started by visitor\n" + CHAT.format("", "")):
        assert read({"messages": text}, role_map=SPOKEN_BY)[0] is None
        (finding,) = read({"messages": text}, role_map=SPOKEN_BY)[1].all()
        assert f"{STAYS_ONE} ('Customer', 'Agent'); cut what stands before" in str(finding)
    assert unsplit_speakers("CUSTOMER: hi\nagent: hello", SPOKEN_BY) == ["CUSTOMER", "agent"]
    for row, roles in (({"messages": [{"role": "user", "content": text}]}, SPOKEN_BY), ({"text": text}, {})):
        conversation, findings = read(row, role_map=roles)
        assert conversation.unsplit == ()
        assert STAYS_ONE not in findings.notes


@pytest.mark.parametrize("between", ["\r", "\x0b", "\x0c", "\u2028", "\x85", "\n\xa0", "\r\n\u3000"])
@pytest.mark.parametrize("colon", [":", " :", "：", "\xa0:"])
def test_a_line_begins_and_a_speaker_ends_in_other_ways_too(between, colon):
    text = f"Customer{colon}hi{between}Agent{colon} hello"
    conversation, _ = read({"chat": text}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    assert conversation.messages == (Message("user", "hi"), Message("assistant", "hello"))
    assert conversation.unsplit == ()


def test_speakers_within_one_of_several_text_columns_are_noted():
    row = {"prompt": "\n\nCustomer: Hi\n\nAgent: Hello\n\nCustomer: Bye\n\nAgent:", "response": "Bye"}
    conversation, findings = read(row, role_map=SPOKEN_BY)
    assert conversation.unsplit == ("Customer", "Agent")
    assert findings.notes[STAYS_WITHIN] == 1
    assert not read({"prompt": "Hi", "response": "Bye"}, role_map=SPOKEN_BY)[1].notes[STAYS_WITHIN]


def test_who_speaks_on_one_line_without_a_sign_between_is_noted():
    text = "Agent: hello how can I help Customer: my order is late Agent: I will look"
    conversation, findings = read({"chat": text}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    assert conversation.unsplit == ("Customer", "Agent")
    assert findings.notes[STAYS_WITHIN] == 1
    for plain in ("Agent: ask the Agent: he knows", "Agent: the Customer: who is it?"):
        assert not read({"chat": plain}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)[0].unsplit


@pytest.mark.parametrize(
    "lines", ["[Agent]: hi\n[Customer]: hello", "**Agent**: hi", "Rep: hi\nClient: hello", "Agent 1: hi"]
)
def test_a_map_of_speakers_none_of_whom_speaks_is_noted(tmp_path, lines):
    note = "no text is of a speaker of data.role_map, spelt so: 'Customer', 'Agent'"
    path = tmp_path / "rows.jsonl"
    settings = DataSettings(columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    for chat, noted in (([lines], 1), ([lines, "Agent: hi"], 0), ([[{"role": "user", "content": lines}]], 0)):
        path.write_text("".join(json.dumps({"chat": text}) + "\n" for text in chat))
        notes = Counter[str]()
        assert [row for _, row in stream_conversations(str(path), settings, notes)]
        assert notes[note] == noted
    notes.clear()
    assert [row for _, row in stream_conversations(str(path), DataSettings(columns=settings.columns), notes)]
    assert not notes


def test_speakers_that_are_called_as_their_roles_are_do_speak(tmp_path):
    path, notes = tmp_path / "rows.jsonl", Counter[str]()
    path.write_text(json.dumps({"chat": "user: hi\nassistant: hello"}))
    settings = DataSettings(
        columns=ColumnSettings(messages="chat"), role_map={"assistant": "assistant", "user": "user"}
    )
    assert [row for _, row in stream_conversations(str(path), settings, notes)]
    assert not notes
    path.write_text(json.dumps({"chat": "User: hi"}))
    settings.role_map = {"assistant": "assistant"}
    assert [row for _, row in stream_conversations(str(path), settings, notes)]
    unspoken = "no text is of a speaker of data.role_map, spelt so: 'assistant'"
    assert list(notes) == ["column 'chat' is read as user", unspoken]


@pytest.mark.parametrize(
    "between",
    [
        ". Agent: so? Agent: hm! ",
        "<br>",
        "<BR />",
        "</p><p>",
        " | ",
        "\\n",
        "\\r\\n",
        "\n12 May 2024 10:00 AM ",
        "\n**",
    ],
)
def test_a_speaker_within_the_turn_of_another_is_noted(between):
    text, columns = f"Customer: hi{between}Agent: hello", ColumnSettings(messages="chat")
    conversation, findings = read({"chat": text}, columns=columns, role_map=SPOKEN_BY)
    assert len(conversation.messages) == 1
    assert conversation.unsplit == ("Agent",)
    assert findings.notes[STAYS_WITHIN] == 1
    conversation, findings = read({"chat": [{"role": "user", "content": text}]}, columns=columns, role_map=SPOKEN_BY)
    assert conversation.unsplit == ()
    assert not findings.notes


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        ("customer,agent", "user,assistant"),
        ("agent,customer", "assistant,user"),
        ("context,customer,agent", "user,user,assistant"),
        ("asked,answered,asked_again", "user,assistant,user"),
        ("history,agent", "user,assistant"),
        ("system,Kundin,gpt", "system,user,assistant"),
        ("context,system", "user,system"),
        ("observation", "user"),
        ("bot_response,user_message", "assistant,user"),
        ("user_input,model_output", "user,assistant"),
        ("answer_text,Customer says", "assistant,user"),
        ("answer", "assistant"),
    ],
)
def test_who_speaks_in_a_text_column_its_name_says_or_they_take_turns(names, roles):
    row = {name: f"says {name}" for name in names.split(",")}
    conversation, findings = read(row, columns=ColumnSettings(messages=names), role_map={"Kundin": "user"})
    assert [(m.role, m.content) for m in conversation.messages] == list(
        zip(roles.split(","), row.values(), strict=True)
    )
    assert findings.notes["role 'Kundin' is read as user"] == ("Kundin" in row)
    guessed = [f"column {name!r} is read as {role}" for name, role in zip(row, roles.split(","), strict=True)]
    plain = ("history", "customer", "agent", "system", "Kundin", "gpt", "context", "answer")
    wanted = {note for note, name in zip(guessed, row, strict=True) if name not in plain}
    assert {note for note in findings.notes if note.startswith("column ")} == wanted


@pytest.mark.parametrize(
    "names",
    [
        "knowledge,question,answer",
        "title,text",
        "reply_text,question",
        "system_prompt,question",
        "model_input,question",
        "Kundin,reply",
        "history,reply",
        "a,developer,bot",
    ],
)
def test_a_column_whose_name_says_nothing_among_others_whose_names_do_is_asked_for(names):
    row = {name: f"says {name}" for name in names.split(",")}
    known = ("question", "answer", "text", "Kundin", "history", "bot")
    unknown = ", ".join(f'"{name}": ROLE' for name in row if name not in known)
    conversation, findings = read(row, columns=ColumnSettings(messages=names), role_map={"Kundin": "user"})
    assert conversation is None
    (finding,) = findings.all()
    assert finding.code == "ROLE_UNKNOWN"
    assert finding.problem.endswith(f"'data.role_map={{{unknown}}}', each of user, assistant, system or tool")


@pytest.mark.timeout(120)  # ends a search in quadratic time, which would take hours
@pytest.mark.parametrize(
    "part", ["10:00", "10:00 ", "[10:00", "2024-05-01 ", "1:1", "9", " ", "\n", "[1:00] - ", "Mon "]
)
def test_a_hostile_text_is_searched_for_stamps_in_linear_time(part):
    assert spoken(part * 200_000, ["Bot"]) == unsplit_speakers(part * 200_000, ["Bot"]) == []


def test_another_spelling_of_a_mapped_label_is_mapped_as_well(tmp_path):
    rows = [{"prompt": "Hello.", "label": label} for label in ("ok", "OK", "Ok ")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = DataSettings(label_map={"ok": "violation", "violation": "ok"})
    found = read_labelled(str(tmp_path / "rows.jsonl"), settings, Policy("p", "P", "Rule."))
    assert [row.labels["p"] for row in found] == ["violation"] * 3
