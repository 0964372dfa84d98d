"""One conversation from a file or standard input, and what is none."""

import io
import json
import sys

import pytest

from alora.data.conversation import Conversation, Message, read_conversation
from alora.errors import DataError
from alora.text import read_whole
from tests.unit.data.rows import row


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


def test_what_is_read_has_an_end(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"x" * 11)
    assert read_whole(path, 11) == b"x" * 11
    with pytest.raises(OSError, match="is longer than"):
        read_whole(path, 10)
