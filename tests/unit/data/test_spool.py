"""Rows on disk beyond a bound: the same rows, little memory, nothing left behind."""

import json
import tracemalloc

import pytest

from alora.config.schema import DataSettings
from alora.data import spool
from alora.data.conversation import Message
from alora.data.labelled import read_multilabelled
from alora.data.splits import merge_rows, rows_digest
from alora.policy import Policy

POLICY = Policy(id="tone", title="No shouting", rule="")


@pytest.fixture(params=[1, spool.IN_MEMORY], ids=["disk", "memory"])
def bound(request, monkeypatch):
    monkeypatch.setattr(spool, "IN_MEMORY", request.param)
    return request.param


def test_rows_are_the_same_wherever_they_lie(tmp_path, bound, monkeypatch):
    call = {"function": {"name": "find", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": "find", "content": "none"}]  # fmt: skip
    lines = [json.dumps({"messages": messages[: 1 + n % 3], "label": "ok"}) for n in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def read():
        return read_multilabelled(str(tmp_path / "a.jsonl"), DataSettings(), [POLICY])

    found = read()
    assert found[2].conversation.messages[2] == Message("tool", "none", name="find")
    assert found[1].conversation.messages[1].calls[0].arguments == '{"a": 1}'
    assert len(merge_rows(found)) == 3, "of the same messages"
    monkeypatch.setattr(spool, "IN_MEMORY", 10**9)
    assert (found[0], found[5]) == (read()[0], read()[5])
    assert rows_digest(found) == rows_digest(read())


def test_rows_of_much_text_take_little_memory(tmp_path, bound):
    with (tmp_path / "a.jsonl").open("w") as file:
        for n in range(500):
            file.write(json.dumps({"messages": [{"role": "user", "content": f"{n}" * 2000}], "label": "ok"}) + "\n")
    size = (tmp_path / "a.jsonl").stat().st_size
    tracemalloc.start()
    rows = read_multilabelled(str(tmp_path / "a.jsonl"), DataSettings(), [POLICY])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 500
    assert (held < size / 4) is (bound == 1), f"{held} bytes held of {size}"
