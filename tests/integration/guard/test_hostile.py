"""``alora.Guard`` and ``alora score scorer=URL`` against what is no guard, or not the one that it was."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import alora
from alora.cli import main
from alora.config.secrets import KEY
from alora.errors import AloraError, CheckFailed, ConfigError
from alora.transport import Unreachable
from tests.integration.guard.raw_server import http, server

MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]
ANSWERS = {
    "not UTF-8": (http(200, b"\xff\xfe"), CheckFailed),
    "nested without end": (http(200, b"[" * 500_000), CheckFailed),
    "cut": (http(200, b'{"id": ', length=500), Unreachable),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", Unreachable),
    "another key": (b"HTTP/1.1 401 X\r\nContent-Length: 2\r\n\r\n{}", ConfigError),
    "another place": (b"HTTP/1.1 302 X\r\nLocation: http://u:pw@there/\r\nContent-Length: 0\r\n\r\n", ConfigError),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", KEY):
        monkeypatch.delenv(name, raising=False)


def ask(url: str) -> None:
    with alora.Guard(url, 10) as guard:
        guard.check(MESSAGES)


def list_policies(url: str) -> None:
    with alora.Guard(url, 10) as guard:
        guard.policies()


@pytest.mark.parametrize("way", [ask, list_policies])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_an_error_by_its_kind(name, way):
    answer, kind = ANSWERS[name]
    with server(lambda path: answer) as url, pytest.raises(AloraError) as raised:
        way(url)
    assert type(raised.value) is kind


def test_the_command_line_does_not_show_the_key_either(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(KEY, "sk-SECRET\r")
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with server(lambda path: http(200, b"{}")) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 2
    assert "SECRET" not in "".join(capsys.readouterr())


POLICY = {
    "policy": "p", "title": "t", "adapter": "p@012345678901", "digest": "0123456789012345", "action": "block",
    "tags": [], "labels": ["yes", "no"], "threshold": 0.5, "psi": None,
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
    "no list": (5, ANSWER),
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
