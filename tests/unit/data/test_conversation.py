"""One conversation from a file or standard input, and what is none."""

import io
import json
import sys

import pytest

from alora.data.conversation import Conversation, Message, read_conversation
from tests.unit.data.rows import row


@pytest.mark.parametrize("value", [row(), row()["messages"]], ids=["object", "list"])
def test_a_conversation_from_a_file_and_from_standard_input(tmp_path, monkeypatch, value):
    path = tmp_path / "talk.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(value).encode())
    assert read_conversation(str(path)).messages == (Message("user", "Hi"),)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert read_conversation("-") == Conversation("standard input", (Message("user", "Hi"),))
