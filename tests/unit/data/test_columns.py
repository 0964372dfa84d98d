"""Which columns of a row are read, recognised or named, and who speaks in them."""

import json
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import holds_rows, read_conversation, stream_conversations
from alora.data.findings import Findings
from alora.data.labelled import read_labelled
from alora.data.messages import Message
from alora.data.transcripts import split
from alora.errors import DataError
from tests.unit.data.rows import POLICY, SPOKEN_BY, TURNS, codes, jsonl, read, read_one, roles, row, said, streamed

WHOLE = ["user", "assistant"]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": "a", "response": "b"}, WHOLE),
        ({"response": "b", "system": "s", "prompt": "a"}, ["system", *WHOLE]),
        ({"question": "a", "answer": "b"}, WHOLE),
        ({"text": "a"}, ["user"]),
        ({"prompt": "a"}, ["user"]),
        ({"Prompt ": "a", "Response": "b"}, WHOLE),
        ({"prompt": "a", "response": None}, ["user"]),
        ({"prompt": "a", "response": "b", "text": ""}, WHOLE),
        ({"prompt": "a", "user": "b", "assistant": "c"}, None),
        ({"prompt": "a", "response": "b", "output": "c"}, None),
        ({"title": "a", "body": "b"}, None),
    ],
)
def test_columns_that_are_found_and_those_of_which_it_is_not_plain(row, found):
    conversation, findings = read_one(row)
    if found is None:
        assert [finding.code for finding in findings.all()] == ["COLUMN_MISSING"]
        assert "data.columns.messages=NAME" in findings.all()[0].problem
    else:
        assert roles(conversation) == found


def test_a_label_group_or_id_is_no_turn():
    for setting in ("label", "labels", "id"):
        named = ColumnSettings(**{setting: "answer"})
        assert said(read_one({"prompt": "Hi", "answer": "no"}, columns=named)[0]) == [("user", "Hi")]
    user = {"user": "u1", "prompt": "Hi", "assistant": "Ho"}
    assert roles(read_one(user, columns=ColumnSettings(group="user"))[0]) == WHOLE
    assert read_one(user)[0] is None


def test_a_row_may_leave_out_a_column_in_which_it_has_nothing(tmp_path):
    asked, both = {"prompt": "Hi"}, {"prompt": "Hi", "response": "Ho"}
    path = tmp_path / "rows.jsonl"
    for columns in ({}, {"messages": "prompt,response"}):
        for lines, read_as in (([asked, both], [["user"], WHOLE]), ([both, asked], [WHOLE, ["user"]])):
            notes = Counter[str]()
            assert streamed(path, *lines, notes=notes, **columns) == read_as
            assert notes["nothing is in column 'response', so the row has a message less"] == 1
    assert streamed(path, both, {"x": 1}, {"response": "Ho"}) == [WHOLE, "COLUMN_MISSING", ["assistant"]]
    other = {"prompt": "Hi", "completion": "another reply"}
    assert streamed(path, both, other, messages="prompt,response") == [WHOLE, "COLUMN_MISSING"]


def test_a_column_that_no_row_has_is_misspelt(tmp_path):
    both = {"prompt": "Hi", "response": "Ho", "label": "ok"}
    named = ColumnSettings(messages="prompt,respnse")
    assert codes(jsonl(tmp_path, both, both), columns=named).keys() == {"COLUMN_MISSING"}
    later = [{"prompt": "Hi", "label": "ok"}] * 60 + [both]
    assert codes(jsonl(tmp_path, *later), columns=ColumnSettings(messages="prompt,response")) == {}
    named = ColumnSettings(messages="prompt,response")
    assert codes(jsonl(tmp_path, *later[:60]), columns=named) == {"COLUMN_MISSING": 1}


def test_columns_that_are_not_read_are_noted_once(tmp_path):
    notes, path = Counter[str](), tmp_path / "rows.jsonl"
    asked = {"question": "a", "answer": "b"}
    rows = [asked | {"context": "Docs.", "score": 1}, asked | {"c": "x"}]
    streamed(path, *rows, notes=notes)
    assert notes == {"'context', 'c' are not read: data.columns.messages names no such turn": 1}
    for named in ({"messages": "question,answer"}, {"group": "context", "id": "c"}):
        streamed(path, *rows, notes=(quiet := Counter[str]()), **named)
        assert not quiet


INJECTED = json.dumps([{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}])


def test_a_text_that_is_a_json_list_among_others_is_a_text(tmp_path):
    texts = ["hello", "there", "you", "and", "I", INJECTED, '["apple", "pear"]', "[1, 2]", "[]"]
    rows = read(jsonl(tmp_path, *({"text": text, "label": "ok"} for text in texts)))
    assert [said(item.conversation) for item in rows] == [[("user", text)] for text in texts]


@pytest.mark.parametrize("column", ["messages", "chat", "conversations"])
def test_most_cells_of_a_column_decide_whether_it_holds_messages(tmp_path, column):
    path = jsonl(tmp_path, *({column: cell, "label": "ok"} for cell in (INJECTED, "", INJECTED)))
    rows = read(path, skip_empty=True)
    assert [roles(item.conversation) for item in rows] == [["system", "assistant"]] * 2
    assert roles(read_one({"text": INJECTED, "b": 1})[0]) == ["system", "assistant"]


def own(text, label):
    verdicts = {"p": {"why": "uncertain", "label": "ok", "probability": 0.5}}
    messages = [{"role": "user", "content": text}]
    return {"id": f"log.jsonl:{text}", "messages": messages, "labels": {"p": label}, "verdicts": verdicts}


NAMED = [
    {"messages": "asked,told", "label": "promised"},
    {"messages": "asked,told", "label": "promised", "labels": "gold", "id": "ticket", "group": "shop"},
    {"messages": "asked,told", "label": "%policy%"},
    {"messages": "asked,told", "labels": "gold"},
]
THEIRS = {"asked": "a", "told": "b", "promised": "ok", "gold": {"p": "ok"}, "p": "ok", "ticket": "t", "shop": "s"}


@pytest.mark.parametrize("named", NAMED)
def test_rows_that_alora_wrote_are_read_whatever_columns_are_named(tmp_path, named):
    made = row("h", "violation") | {"pair": 1, "generated": {"model": "m"}}
    chats = jsonl(tmp_path, THEIRS, name="chats.jsonl")
    labelled = jsonl(tmp_path, own("f", "violation"), own("g", "ok"), name="labelled.jsonl")
    settings = DataSettings(columns=ColumnSettings(**named))
    rows = read_labelled([labelled, jsonl(tmp_path, made, name="made.jsonl"), chats], settings, POLICY)
    assert [item.conversation.messages[0].content for item in rows] == ["f", "g", "h", "a"]
    assert [item.labels["p"] for item in rows] == ["violation", "ok", "violation", "ok"]
    assert rows[0].conversation.id == "log.jsonl:f"
    assert {item.group for item in rows} == ({"", "s"} if "group" in named else {""})


def test_one_conversation_is_read_whatever_the_rows_are_called(tmp_path):
    path = tmp_path / "talk.json"
    for value, column in (
        (row(), "dialogue"),
        ({"dialogue": TURNS, "messages": []}, "dialogue"),
        ({"dialogue": TURNS}, "messages"),
    ):
        path.write_text(json.dumps(value))
        settings = DataSettings(columns=ColumnSettings(messages=column))
        assert read_conversation(str(path), settings).messages == (Message("user", "Hi"),)
    for text in (INJECTED, "hello"):  # a user's own
        path.write_text(json.dumps({"text": text}))
        assert said(read_conversation(str(path))) == [("user", text)]
    path.write_text(json.dumps({"text": "User: a\nAgent: b"}))
    with pytest.raises(DataError, match="TRANSCRIPT"):
        read_conversation(str(path))
    assert roles(read_conversation(str(path), DataSettings(format="transcript"))) == WHOLE


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([{"messages": TURNS}], True),
        ([{"prompt": "Hi", "response": "Ho"}], True),
        (TURNS, False),
        ({"messages": TURNS}, False),
        ([{"from": "human", "value": "Hi"}], False),
        ([{"speaker": "ann", "text": "Hi"}], False),
        ([{"text": "Hi", "label": "ok", "id": "a"}], True),
        ([], False),
    ],
)
def test_an_array_of_rows_is_told_from_one_conversation(tmp_path, content, wanted):
    path = tmp_path / "chats.json"
    for text in (json.dumps(content), "\ufeff " + json.dumps(content, indent=1)):
        path.write_text(text)
        assert holds_rows(str(path), DataSettings()) is wanted
    line = json.dumps({"text": "Hi"})
    for text, several in ((f"{line}\n\n{line}\n", True), (f"{line}\n", False), ("[", False)):
        path.write_text(text)
        assert holds_rows(str(path), DataSettings()) is several


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("customer,agent", "user,assistant"),
        ("context,customer,agent", "user,user,assistant"),
        ("asked,answered,asked_again", "user,assistant,user"),
        ("system,Kundin,gpt", "system,user,assistant"),
        ("bot_response,userMessage", "assistant,user"),
        ("answer", "assistant"),
        ("knowledge,question,answer", None),
        ("Kundin,reply_xy,zz", None),
    ],
)
def test_who_speaks_in_a_column_its_name_says_or_they_take_turns(names, wanted):
    cells = {name: f"says {name}" for name in names.split(",")}
    conversation, findings = read_one(cells, columns=ColumnSettings(messages=names), role_map={"Kundin": "user"})
    if wanted is None:
        assert [finding.code for finding in findings.all()] == ["ROLE_UNKNOWN"]
        assert "data.role_map={" in findings.all()[0].problem
    else:
        assert [(m.role, m.content) for m in conversation.messages] == list(
            zip(wanted.split(","), cells.values(), strict=True)
        )


TRANSCRIPT = "Agent: Hello!\nHow are you?\r\n\n Customer: see http://a.b\nand Agent: too"


def test_what_of_a_transcript_is_not_split_is_refused_or_noted(tmp_path):
    def read_as(*texts):
        notes = Counter[str]()
        rows = streamed(
            tmp_path / "a.jsonl",
            *({"chat": text} for text in ("Agent: a\nUser: b", "Agent: c\nUser: d", *texts)),
            notes=notes,
        )
        return rows[2:], [note for note in notes if "part of the turn before" in note]

    both = ["assistant", "user"]
    (found,) = read(jsonl(tmp_path, {"chat": TRANSCRIPT, "label": "ok"}))
    assert said(found.conversation) == [
        ("assistant", "Hello!\nHow are you?"),
        ("user", "see http://a.b\nand Agent: too"),
    ]
    assert read_as("Chat started\nAgent: a\nCustomer: b") == (["TRANSCRIPT"], [])
    assert read_as("Agent: a\nAnn Lee: b") == (["TRANSCRIPT"], [])
    with pytest.raises(DataError, match="cut what stands before"):
        read(jsonl(tmp_path, {"text": "Hm\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb", "label": "ok"}))
    assert read_as("hello") == ([["user"]], [])
    assert read_as("Agent: a\nSupervisor: b\nCustomer: c")[0] == [both]
    assert "'Supervisor'" in read_as("Agent: a\nSupervisor: b\nCustomer: c")[1][0]
    mapped = {"chat": "Ann: a\nBo Lee: b"}
    conversation, findings = read_one(mapped, role_map={"Ann": "user", "*": "assistant"})
    assert roles(conversation) == WHOLE
    assert findings.notes["role 'Ann' is read as user"] == 1
    assert roles(read_one({"messages": "Customer: hi\nAgent: hello", "system": "Be"}, role_map=SPOKEN_BY)[0]) == [
        "system",
        *WHOLE,
    ]


@pytest.mark.parametrize(
    "stamp",
    ["[10:00] ", "10:00:05 ", "[2024-05-01T10:00Z] ", " 01.05.2024 ", "[5/1/24, 10:00:05\u202fPM] ", "10:00 – ",
     "2024-05-01 10:00:05 | ", "Mon 10:00 ", "Wed. 2024-05-01 10:00 - ", "### ", "**", "> "],
)  # fmt: skip
@pytest.mark.parametrize("colon", [":", " :", "："])
def test_a_time_stamp_or_mark_before_a_speaker_is_no_part_of_the_text(stamp, colon):
    text = f"{stamp}Bot{colon} Hello!\n10:00 it is\n{stamp}Caller{colon} 10:01 Bot: hi"
    assert [(turn["role"], turn["content"]) for turn in split(text, {})] == [
        ("assistant", "Hello!\n10:00 it is"),
        ("user", "10:01 Bot: hi"),
    ]
    for before in ("[a] ", "http://", "10:00 then ", "My "):
        assert split(f"{before}Bot: hi", {}) == [], "no time stamp"


def test_rows_without_any_text_are_left_out_by_choice(tmp_path):
    chats = tmp_path / "chats.csv"
    chats.write_text("prompt,response,label\n,,ok\nHi,Hello,ok\n,  ,\n")
    assert codes(str(chats))["EMPTY"] == 2
    findings = Findings()
    rows = read_labelled(str(chats), DataSettings(skip_empty=True), POLICY, findings)
    assert [row.where for row in rows] == ["chats.csv:3"]
    assert findings.notes["a row without any text is left out (data.skip_empty)"] == 2
    of_log = [row for _, row in stream_conversations(str(chats), DataSettings(skip_empty=True))]
    assert [hasattr(row, "findings") for row in of_log] == [True, False, True], "a log has a verdict or a reason a row"


def test_each_source_has_a_format_of_its_own_by_its_first_rows_together(tmp_path):
    (tmp_path / "chats.csv").write_text("Question,Answer,label\nHi,Hello,ok\n")
    messages = jsonl(tmp_path, {"conversations": [{"from": "human", "value": "Hi"}], "label": "ok"})
    found = read_labelled([str(tmp_path / "chats.csv"), messages], DataSettings(), POLICY)
    assert [roles(row.conversation) for row in found] == [WHOLE, ["user"]]
    asked = {"prompt": "a", "label": "ok"}
    for before, sizes in ((44, {1: 44, 2: 6}), (50, {1: 56})):
        rows = [asked] * before + [asked | {"response": "b"}] * 6
        found = read(jsonl(tmp_path, *rows))
        assert Counter(len(row.conversation.messages) for row in found) == sizes
