"""Rows that the tests of reading share."""

import json

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import Rejected, stream_conversations
from alora.data.labelled import read_labelled
from alora.policy import Policy

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


def streamed(path, *lines, notes=None, **columns):
    """The turns of each row, by role, or its problem."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = DataSettings(columns=ColumnSettings(**columns))
    rows = [row for _, row in stream_conversations(str(path), settings, notes)]
    return [row.findings[0].code if isinstance(row, Rejected) else roles(row.conversation) for row in rows]


def roles(conversation):
    return [message.role for message in conversation.messages]
