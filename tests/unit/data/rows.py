"""Rows that the tests of reading share."""

import json

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.columns import find_columns, note_unread
from alora.data.conversation import Rejected, stream_conversations
from alora.data.labelled import read_labelled
from alora.data.messages import conversation_of
from alora.findings import Findings
from alora.policy import Policy

POLICY = Policy("p", "T", "R")
OTHER = Policy("q", "T", "R")
TURNS = [{"role": "user", "content": "Hi"}]
SPOKEN_BY = {"Customer": "user", "Agent": "assistant"}


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


def streamed(path, *lines, notes=None, **columns):
    """The turns of each row, by role, or its problem."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = DataSettings(columns=ColumnSettings(**columns))
    rows = [row for _, row in stream_conversations(str(path), settings, notes)]
    return [row.findings[0].code if isinstance(row, Rejected) else roles(row.conversation) for row in rows]


def roles(conversation):
    return [message.role for message in conversation.messages]


def read_one(row, **settings):
    """One row, without a file, and what was found."""
    findings = Findings()
    known = DataSettings(**settings)
    usual = known.columns.messages == ColumnSettings.messages
    known.columns = find_columns(known.columns, [row], findings)
    if usual:
        note_unread(known.columns, row, findings, set())
    return conversation_of(row, "f:1", known, findings), findings
