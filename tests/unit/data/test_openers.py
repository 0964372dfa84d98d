"""A note names who speaks within the turns of transcripts and has no role."""

import json
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data import openers
from alora.data.conversation import read_conversation, stream_conversations
from alora.findings import as_lines
from tests.unit.data.rows import jsonl


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


TOLD = "are part of the turn before them: data.role_map has no such speaker"


def noted(tmp_path, *texts, **role_map):
    """The notes on ``texts`` about who speaks within a turn."""
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"), role_map=role_map)
    rows = jsonl(tmp_path, *({"chat": text} for text in texts))
    assert len(list(stream_conversations(rows, settings, notes))) == len(texts)
    return {note: count for note, count in notes.items() if note.endswith(TOLD)}


def test_who_speaks_is_told_among_thousands_of_other_names(tmp_path, monkeypatch):
    monkeypatch.setattr(openers, "_MOST", 50)
    rows = [f"Customer: hi\nOrder {number} sent: yes\nAgent: sure" for number in range(400)]
    late = [f"{rows[number]}\n{'Bot' if number == 300 else 'Supervisor'}: hm" for number in range(0, 400, 75)]
    (note,) = noted(tmp_path, *rows, *late, Customer="user", Agent="assistant").items()
    assert note[0].startswith("lines that open with 'Bot', 'Supervisor', 'Order 0 sent', 'Order 1")
    assert note[1] == 406
    names = {f"{letter}{letter}": "user" for letter in "abcdefghijklmnopqrstuvw"}
    notes, settings = Counter[str](), DataSettings(columns=ColumnSettings(messages="chat"))
    settings.role_map = {"Customer": "user", "Agent": "assistant", **names}
    texts = ["\n".join(f"{name}: hi" for name in names), "Customer: hi\nBot: wait"]
    assert list(stream_conversations(jsonl(tmp_path, *({"chat": text} for text in texts)), settings, notes))
    assert len(notes) > 20
    assert any(f"'Bot' {TOLD}" in line for line in as_lines(notes))


@pytest.mark.parametrize("of_all", [1, 2, 10, 100])
def test_a_customer_with_a_name_of_its_own_in_each_transcript_is_told(tmp_path, of_all):
    names = [f"{first}{second}" for first in "ABCDEFGHIJ" for second in "abcdefghkl"]
    rows = [f"Agent: hi\n{name}: it broke\nAgent: sure" for name in names[::of_all]]
    rows += ["Agent: hi\nCustomer: it broke"] * (len(names) - len(rows))
    (note,) = noted(tmp_path, *rows, Agent="assistant", Customer="user").items()
    assert note[0].startswith("lines that open with 'Aa'")
    assert note[1] == 100 // of_all


def test_names_in_fewer_than_one_of_a_hundred_transcripts_are_exceptions_and_hide_no_speaker(tmp_path):
    rows = ["Agent: hi\nCustomer: it broke"] * 501
    odd = [f"Agent: hi\n{name}: ok" for name in ("Ann", "Bob", "Note", "Re")]
    role_map = {"Agent": "assistant", "Customer": "user"}
    assert noted(tmp_path, *rows, *odd, **role_map) == {}
    assert noted(tmp_path, *rows, *odd, "Agent: hi\nBot: wait", **role_map) == {f"lines that open with 'Bot' {TOLD}": 1}


@pytest.mark.parametrize(
    "speaker", ["Visitor ", "Customer # ", "Chat bot nr. ", "Agent", "Guest", "user_", "Caller (555) 123-"]
)
def test_a_speaker_with_a_number_of_its_own_in_each_transcript_is_told(tmp_path, speaker):
    rows = [f"Agent: hi\n{speaker}{number}: it broke\nAgent: sure" for number in range(200)]
    notes = noted(tmp_path, *rows, Agent="assistant")
    name = speaker.rstrip(" #.-_()0123456789") + " ..." * (speaker == "Agent")
    assert notes[f"lines that open with '{name}' {TOLD}"] == 200


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
    notes = noted(tmp_path, f"{next(iter(roles))}: hi\n{opener}: it broke", **roles)
    assert notes[f"lines that open with '{name}' {TOLD}"]


def test_letters_of_several_characters_are_of_a_name(tmp_path):
    told = noted(tmp_path, "राम: a\nரா: b\nवि: c\nवी 2: d", राम="user", र="assistant")
    assert told == {f"lines that open with 'वि', 'वी', 'ரா' {TOLD}": 1}


def test_hours_are_no_speakers_and_hide_none(tmp_path):
    hours = "\n".join(f"{hour}:00-{hour}:30" for hour in range(8, 18))
    rows = [f"Agent: we have\n{hours}\nCustomer: 9\nDr Weber: take two" for _ in range(3)]
    notes = noted(tmp_path, *rows, Agent="assistant", Customer="user")
    assert notes == {f"lines that open with 'Dr Weber' {TOLD}": 3}


def test_of_many_speakers_a_note_says_how_many_more_there_are(tmp_path):
    rows = ["Agent: hi\n" + "\n".join(f"{letter}{letter}: hm" for letter in "jihgfedcba")] * 2
    notes = noted(tmp_path, *rows, Agent="assistant")
    assert [note for note in notes if "'aa', 'bb', 'cc', 'dd', 'ee', 'ff', 'gg', 'hh' and 2 more are part of" in note]


def test_names_of_a_speaker_with_numbers_count_as_one_and_take_no_memory(tmp_path, monkeypatch):
    """Counted by one, ten thousand names were looked through again with every row."""
    monkeypatch.setattr(openers, "_MOST", 5)
    looked, order = [], openers.Openers._in_order
    monkeypatch.setattr(openers.Openers, "_in_order", lambda self: looked.append(self) or order(self))
    lines = [f"Agent {number}: hi\n" + "\n".join(f"{number}{letter}: x" for letter in "ab") for number in range(60)]
    notes = noted(tmp_path, *(f"Customer: hi\n{line}" for line in lines), Customer="user", Agent="assistant")
    assert max(notes[note] for note in notes if note.startswith("lines that open with 'Agent ...'")) == 60
    assert len(looked) < 60
