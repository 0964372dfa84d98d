"""``alora score scorer=URL`` against a server that is not the guard that it was."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from alora.cli import main
from tests.integration.guard.raw_server import http, server

POLICY = {
    "policy": "p", "title": "t", "adapter": "p@012345678901", "digest": "0123456789012345", "action": "block",
    "rule": "r", "tags": [], "labels": ["yes", "no"], "threshold": 0.5, "psi": None,
}  # fmt: skip
VERDICT = {
    "policy": "p", "status": "ok", "flagged": False, "adapter": "p@012345678901", "label": "no", "probability": 0.25,
    "threshold": 0.5, "probabilities": {"yes": 0.25, "no": 0.75}, "reason": None,
}  # fmt: skip
ANSWER = {
    "id": "x", "action": "allow", "complete": True, "verdicts": [VERDICT],
    "usage": {"prefix_tokens": 1, "suffix_tokens": 1, "computed_tokens": 2, "policies": 1},
    "timing_ms": {"render": 0.1, "total": 1.0},
}  # fmt: skip
FAULTS = {  # what it lists, and what it answers
    "no verdicts": ([POLICY], {**ANSWER, "verdicts": None}),
    "another threshold": ([POLICY], {**ANSWER, "verdicts": [{**VERDICT, "threshold": 0.75}]}),
    "another adapter": ([POLICY], {**ANSWER, "verdicts": [{**VERDICT, "adapter": "p@\x1b[2J"}]}),
}


@contextmanager
def talking(policies: object, answer: object) -> Iterator[str]:
    """A guard that says what it is told."""
    with server(
        lambda path: http(200, json.dumps({"policies": policies} if path.endswith("policies") else answer).encode())
    ) as url:
        yield url


@pytest.mark.parametrize("case", FAULTS)
def test_the_command_line_names_the_server_that_talks_nonsense(case, tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with talking(*FAULTS[case]) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 1
    said = capsys.readouterr().err
    assert (url in said, "\x1b" in said, len(said) < 1000) == (True, False, True)
    assert not (tmp_path / "v.parquet").exists()


def test_a_right_answer_is_saved(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with talking([POLICY], ANSWER) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 0
