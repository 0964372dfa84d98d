"""Rows one at a time: every row is a conversation or a reason, whatever its neighbours are."""

import json

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
