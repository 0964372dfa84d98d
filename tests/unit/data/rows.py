"""Rows that the tests of reading share."""

import json
from collections import Counter

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import Rejected, stream_conversations
from alora.data.findings import Findings
from alora.data.formats import recognise
from alora.data.labelled import read_labelled
from alora.data.row import read_row
from alora.errors import DataError
from alora.policy import Policy

POLICY = Policy("p", "T", "R")
OTHER = Policy("q", "T", "R")
TURNS = [{"role": "user", "content": "Hi"}]
SPOKEN_BY = {"Customer": "user", "Agent": "assistant"}


def row(text="Hi", label="ok", **more):
    return {"messages": [{"role": "user", "content": text}], "label": label, **more}


def jsonl(folder, *rows, name="train.jsonl"):
    path = folder / name
    lines = [item if isinstance(item, bytes | str) else json.dumps(item) for item in rows]
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return str(path)


def read(path, **settings):
    return read_labelled(path, DataSettings(**settings), POLICY)


def codes(path, **settings):
    """The codes of what is wrong with a file, each with the number of rows."""
    try:
        read(path, **settings)
    except DataError as error:
        return {finding.code: finding.count for finding in error.findings}
    return {}


def said(conversation):
    """Who says what."""
    return [(message.role, message.text) for message in conversation.messages]


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
    findings, known = Findings(), DataSettings(**settings)
    try:
        layout = recognise([row], known, "f:1")
    except DataError as error:
        for finding in error.findings:
            findings.add(finding.code, finding.where, finding.problem)
        return None, findings
    return read_row(row, "f:1", layout, known, findings, Counter()), findings
