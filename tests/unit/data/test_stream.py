"""Rows one at a time: every row is a conversation or a reason, whatever its neighbours are."""

import json

import pyarrow
import pyarrow.parquet

from alora.data.conversation import LabelledConversation, Rejected, stream_conversations


def row(text: str = "hello", **more: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": text}], **more})


def outcomes(path) -> list[str]:
    found = []
    for _, one in stream_conversations(str(path)):
        found.append(one.where if isinstance(one, LabelledConversation) else one.findings[0].code)
    return found


def test_each_row_has_its_own_outcome_in_order(tmp_path):
    lines = [row(), "[", "", "{}", row(id=1.5), row(), '{"messages": [{"role": "x", "content": 1}]}', "}"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    wanted = ["a.jsonl:1", "NOT_JSON", "COLUMN_MISSING", "ID_KIND", "a.jsonl:6", "ROLE_UNKNOWN", "NOT_JSON"]
    assert outcomes(tmp_path / "a.jsonl") == wanted
    *_, (_, both), _ = stream_conversations(str(tmp_path / "a.jsonl"))
    assert isinstance(both, Rejected)
    assert [finding.code for finding in both.findings] == ["ROLE_UNKNOWN", "CONTENT_KIND"]


def test_the_first_row_of_a_known_form_decides_how_texts_are_read(tmp_path):
    turns = [json.dumps({"prompt": f"p{n}", "response": f"r{n}"}) for n in range(2)]
    (tmp_path / "a.jsonl").write_text("\n".join(['{"error": "timeout"}', "[1]", *turns, '{"error": 1}']))
    assert outcomes(tmp_path / "a.jsonl") == ["COLUMN_MISSING", "ROW_KIND", "a.jsonl:3", "a.jsonl:4", "COLUMN_MISSING"]


def test_messages_of_a_parquet_log_may_stand_in_any_groups_of_rows(tmp_path):
    rows = [{"messages": [{"role": "user", "content": f"{n}"}] * (1 + n % 2)} for n in range(2100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    read = [one for _, one in stream_conversations(str(tmp_path / "a.parquet"))]
    assert [one.where for one in read] == [f"a.parquet:{n + 1}" for n in range(2100)]
    assert [[m.content for m in one.conversation.messages] for one in read] == [
        [message["content"] for message in row["messages"]] for row in rows
    ]
