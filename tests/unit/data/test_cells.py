"""Who speaks in the texts and the columns of a row."""

import json
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import STAYS_ONE, STAYS_WITHIN, spoken, unsplit_speakers
from alora.data.conversation import stream_conversations
from alora.data.messages import Message
from tests.unit.data.rows import SPOKEN_BY, TURNS, read_one


@pytest.mark.parametrize(
    ("name", "told"), [("reply", 1), ("replies", 1), ("bot_to_customer", 1), ("chat", 1), ("response", 0)]
)
def test_what_a_lone_column_is_read_as_is_noted_unless_its_name_says_so(name, told):
    _, findings = read_one({name: "Hi"}, columns=ColumnSettings(messages=name))
    assert findings.notes == ({f"column {name!r} is read as user": 1} if told else {})


def test_names_in_camel_case_have_words():
    turns = {"botResponse": "Ho", "userMessage": "Hi", "AIMessage": "Yo", "LLMAnswer": "Yes"}
    conversation, findings = read_one(turns, columns=ColumnSettings(messages=",".join(turns)))
    assert [(m.role, m.content) for m in conversation.messages] == [
        *(("assistant", "Ho"), ("user", "Hi"), ("assistant", "Yo"), ("assistant", "Yes"))
    ]
    assert findings.notes["column 'botResponse' is read as assistant"] == 1
    _, findings = read_one({"messages": TURNS, "modelId": "m", "modelResponse": "Ho"})
    assert findings.notes == {"'modelResponse', 'modelId' are not read: data.columns.messages names no such turn": 1}


def test_a_reference_may_be_an_answer_so_what_it_is_read_as_is_noted():
    _, findings = read_one({"question": "a", "reference": "b"}, columns=ColumnSettings(messages="question,reference"))
    assert findings.notes == {"column 'reference' is read as user": 1}


def test_a_map_of_columns_is_no_map_of_speakers_in_them():
    columns, role_map = ColumnSettings(messages="knowledge,question,answer"), {"knowledge": "user"}
    row = {"knowledge": "a", "question": "knowledge: b", "answer": "c"}
    conversation, findings = read_one(row, columns=columns, role_map=role_map)
    assert conversation.unsplit == ()
    assert findings.notes == {"role 'knowledge' is read as user": 1}


TRANSCRIPT = "Agent: Hello!\nHow are you?\r\n\n Customer: see http://a.b\nand Agent: too\nAgent:"


def test_a_transcript_in_one_cell_is_turns_where_the_settings_name_its_speakers():
    columns = ColumnSettings(messages="chat")
    conversation, _ = read_one(
        {"chat": TRANSCRIPT}, columns=columns, role_map={"Agent": "assistant", "Customer": "user"}
    )
    assert conversation.messages == (
        Message("assistant", "Hello!\nHow are you?"),
        Message("user", "see http://a.b\nand Agent: too"),
        Message("assistant", ""),
    )
    for role_map, text in (({}, TRANSCRIPT), ({"Agent": "assistant"}, "As Agent: said"), ({"A.": "user"}, "AB: c")):
        conversation, _ = read_one({"chat": text}, columns=columns, role_map=role_map)
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
    conversation, _ = read_one({"chat": text}, columns=columns, role_map=roles)
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
        conversation, _ = read_one(
            {"chat": text}, columns=ColumnSettings(messages="chat"), role_map={"Bot": "assistant"}
        )
        assert conversation.messages == (Message("user", text),)


CHAT = "{}Customer: hi\n{}Agent: hello"


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
    conversation, findings = read_one(
        {"chat": text or "x"}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY
    )
    assert conversation.unsplit == ()
    assert STAYS_ONE not in findings.notes


@pytest.mark.parametrize("stamp", ["May 1, 2024 10:00 AM ", "**[10:00]** ", "[1714500000] ", "[00:00 --> 00:01]", "> "])
def test_a_transcript_that_opens_otherwise_stays_one_message_with_a_note(stamp):
    columns = ColumnSettings(messages="chat")
    for text in (CHAT.format(stamp, stamp), "Chat started by visitor\n" + CHAT.format("", "")):
        conversation, findings = read_one({"chat": text}, columns=columns, role_map=SPOKEN_BY)
        assert conversation.messages == (Message("user", text),)
        assert conversation.unsplit == ("Customer", "Agent")
        assert findings.notes == {STAYS_ONE: 1, "column 'chat' is read as user": 1}
    for text in (CHAT.format(stamp, stamp), "Chat started by visitor\n" + CHAT.format("", "")):
        assert read_one({"messages": text}, role_map=SPOKEN_BY)[0] is None
        (finding,) = read_one({"messages": text}, role_map=SPOKEN_BY)[1].all()
        assert f"{STAYS_ONE} ('Customer', 'Agent'); cut what stands before" in str(finding)
    assert unsplit_speakers("CUSTOMER: hi\nagent: hello", SPOKEN_BY) == ["CUSTOMER", "agent"]
    for row, roles in (({"messages": [{"role": "user", "content": text}]}, SPOKEN_BY), ({"text": text}, {})):
        conversation, findings = read_one(row, role_map=roles)
        assert conversation.unsplit == ()
        assert STAYS_ONE not in findings.notes


@pytest.mark.parametrize("between", ["\r", "\x0b", "\x0c", "\u2028", "\x85", "\n\xa0", "\r\n\u3000"])
@pytest.mark.parametrize("colon", [":", " :", "：", "\xa0:"])
def test_a_line_begins_and_a_speaker_ends_in_other_ways_too(between, colon):
    text = f"Customer{colon}hi{between}Agent{colon} hello"
    conversation, _ = read_one({"chat": text}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    assert conversation.messages == (Message("user", "hi"), Message("assistant", "hello"))
    assert conversation.unsplit == ()


def test_speakers_within_one_of_several_text_columns_are_noted():
    row = {"prompt": "\n\nCustomer: Hi\n\nAgent: Hello\n\nCustomer: Bye\n\nAgent:", "response": "Bye"}
    conversation, findings = read_one(row, role_map=SPOKEN_BY)
    assert conversation.unsplit == ("Customer", "Agent")
    assert findings.notes[STAYS_WITHIN] == 1
    assert not read_one({"prompt": "Hi", "response": "Bye"}, role_map=SPOKEN_BY)[1].notes[STAYS_WITHIN]


def test_who_speaks_on_one_line_without_a_sign_between_is_noted():
    text = "Agent: hello how can I help Customer: my order is late Agent: I will look"
    conversation, findings = read_one({"chat": text}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)
    assert conversation.unsplit == ("Customer", "Agent")
    assert findings.notes[STAYS_WITHIN] == 1
    for plain in ("Agent: ask the Agent: he knows", "Agent: the Customer: who is it?"):
        assert not read_one({"chat": plain}, columns=ColumnSettings(messages="chat"), role_map=SPOKEN_BY)[0].unsplit


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
    conversation, findings = read_one({"chat": text}, columns=columns, role_map=SPOKEN_BY)
    assert len(conversation.messages) == 1
    assert conversation.unsplit == ("Agent",)
    assert findings.notes[STAYS_WITHIN] == 1
    conversation, findings = read_one(
        {"chat": [{"role": "user", "content": text}]}, columns=columns, role_map=SPOKEN_BY
    )
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
    conversation, findings = read_one(row, columns=ColumnSettings(messages=names), role_map={"Kundin": "user"})
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
    conversation, findings = read_one(row, columns=ColumnSettings(messages=names), role_map={"Kundin": "user"})
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
