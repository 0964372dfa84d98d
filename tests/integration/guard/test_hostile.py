"""``alora.Guard`` and ``alora score scorer=URL`` against a server that is not a guard, or a bad one."""

import asyncio
import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import pytest

import alora
from alora import transport
from alora.cli import main
from alora.config.secrets import KEY
from alora.errors import AloraError, CheckFailed, ConfigError, PromptRefused
from tests.integration.guard.raw_server import drops, http, server

MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]
COMPRESSED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
ZEROS = gzip.compress(bytes(2**20))


def in_text(charset: bytes) -> bytes:
    return b"HTTP/1.1 500 X\r\nContent-Type: text/plain; charset=%s\r\nContent-Length: 80000\r\n\r\n" % charset + (
        b"a.b " * 20_000
    )


ANSWERS = {  # and what must be said
    "a bomb": (COMPRESSED % len(ZEROS) + ZEROS, "longer than 0 MiB"),
    "no gzip at all": (COMPRESSED % 3 + b"abc", "does not answer"),
    "no end": (repeat(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2**20)), "longer than 0 MiB"),
    "its headers drop by drop": (drops(b"HTTP/1.1 200 X\r\nA: "), "no whole answer after 0.6 s"),
    "its body drop by drop": (
        drops(b"HTTP/1.1 200 X\r\nContent-Length: 99999\r\n\r\n"),
        "no whole answer after 0.6 s",
    ),
    "to go on, without end": (drops(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "no whole answer after 0.6 s"),
    "not UTF-8": (http(200, b"\xff\xfe"), "is not a guard"),
    "cut": (http(200, b'{"id": ', length=500), "does not answer"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "does not answer"),
    "nested without end": (http(200, b"[" * 500_000), "is not a guard"),
    "another key": (b"HTTP/1.1 401 X\r\nContent-Length: 2\r\n\r\n{}", "export its key as VLLM_API_KEY"),
    "no text": (in_text(b"rot13"), "answered 500: a.b a.b"),
    "a text of names": (in_text(b"idna"), "answered 500: a.b a.b"),
    "to another": (b"HTTP/1.1 302 X\r\nLocation: http://u:pw@there/\r\nContent-Length: 0\r\n\r\n", r"\*\*\*@there"),
}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", KEY):
        monkeypatch.delenv(name, raising=False)


def ask(url: str, timeout: float = 0.3) -> None:
    with alora.Guard(url, timeout) as guard:
        guard.check(MESSAGES)


def ask_asynchronously(url: str, timeout: float = 0.3) -> None:
    async def asking() -> None:
        async with alora.AsyncGuard(url, timeout) as guard:
            await guard.check(MESSAGES)

    asyncio.run(asking())


def list_policies(url: str, timeout: float = 0.3) -> None:
    with alora.Guard(url, timeout) as guard:
        guard.policies()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("way", [ask, ask_asynchronously, list_policies])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_ends_and_is_named(name, way, monkeypatch):
    monkeypatch.setattr(transport, "LONGEST", 2**19)
    answer, word = ANSWERS[name]
    timeout = 0.3 if "no whole answer" in word else 10
    with server(lambda path: answer) as url, pytest.raises(AloraError, match=word):
        way(url, timeout)


@pytest.mark.parametrize("way", [ask, ask_asynchronously, list_policies])
@pytest.mark.parametrize("url", ["http://[::1", "http://\udc80", "ftp://x", "http://127.0.0.1:99999", "http://a b", ""])
def test_what_is_no_address_is_named(url, way):
    with pytest.raises(ConfigError, match="does not answer"):
        way(url)


@pytest.mark.parametrize("way", [ask, ask_asynchronously, list_policies])
@pytest.mark.parametrize("key", ["sk-SECRET\r", "sk-SECRET\n", "sk-SECRET ", "sk-SECRET\u00e9", "sk-SECRET\udc80"])
def test_a_key_that_no_header_carries_is_not_shown(key, way, monkeypatch):
    monkeypatch.setenv(KEY, key)
    with server(lambda path: http(200, b"{}")) as url, pytest.raises(ConfigError, match="holds a character") as raised:
        way(url)
    assert "SECRET" not in str(raised.value)


def test_the_command_line_does_not_show_the_key_either(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(KEY, "sk-SECRET\r")
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with server(lambda path: http(200, b"{}")) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 2
    assert "SECRET" not in "".join(capsys.readouterr())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_it_asks_after_a_fork_too():
    with server(lambda path: http(400, b"no")) as url, alora.Guard(url, 5) as guard:
        with pytest.raises(ConfigError, match="answered 400"):
            guard.check(MESSAGES)
        child = os.fork()
        if child == 0:
            try:
                guard.check(MESSAGES)
            except ConfigError as error:
                os._exit("answered 400" not in str(error))
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


POLICY = {
    "policy": "p", "title": "t", "adapter": "p@012345678901", "digest": "0123456789012345", "stage": "live",
    "tags": [], "labels": ["yes", "no"], "threshold": 0.5, "psi": None,
}  # fmt: skip
VERDICT = {
    "policy": "p", "status": "ok", "flagged": False, "adapter": "p@012345678901", "label": "no", "probability": 0.25,
    "threshold": 0.5, "probabilities": {"yes": 0.25, "no": 0.75}, "reason": None,
}  # fmt: skip
FLAGGED = {
    **VERDICT, "flagged": True, "probability": 0.75, "label": "yes", "probabilities": {"yes": 0.75, "no": 0.25},
}  # fmt: skip
MISSED = {**VERDICT, "status": "missed", **dict.fromkeys(("label", "probability", "threshold", "probabilities"))}
ANSWER = {
    "id": "x", "action": "allow", "complete": True, "verdicts": [VERDICT], "usage": {"prefix_tokens": 1},
    "timing_ms": {"total": 1.0},
}  # fmt: skip
LISTED = {  # what is not as it should be in GET /v1/guard/policies, and what must be said
    "no list": (5, "is not a guard"),
    "no objects": (["p"], "is not a guard"),
    "a policy twice": ([POLICY, POLICY], "a policy twice"),
    **{
        f"{key} {value!r:.20}": ([{**POLICY, key: value}], "is not a guard")
        for key, value in [
            *(("policy", value) for value in ([], 5, "", "\x1b[31m", "../x", "\ud800", "p" * 10**6)),
            *(("labels", value) for value in (5, None, "ab", ["yes"], [1, 2], ["\x1b", "no"])),
            *(("threshold", value) for value in ("x", None, float("nan"), 1e308, -1)),
            *(("digest", value) for value in (5, None, "\x1b[31m", "")),
            *(("adapter", value) for value in ([], "\x1b[31m")),
            ("stage", 5),
        ]
    },
}
ANSWERED = {  # the same of the answer to a question
    "no verdict": ({"verdicts": []}, "no verdict on p"),
    "another's verdict": ({"verdicts": [{**VERDICT, "policy": "q", "adapter": "q@0"}]}, "no verdict on p"),
    "a miss let through": ({"verdicts": [MISSED], "complete": False}, "did not answer"),
    **{
        f"{key} {value!r:.20}": ({"verdicts": [{**VERDICT, key: value}]}, word)
        for key, value, word in [
            ("probability", None, "lacks"),
            ("probability", "high", "is not a guard"),
            ("probabilities", None, "lacks"),
            ("label", None, "lacks"),
            ("label", "\x1b[2J", "was listed with"),
            ("threshold", 0.75, "was listed with"),
            ("status", "well", "the status is 'well'"),
        ]
    },
}


@contextmanager
def talking(policies: object, answer: object) -> Iterator[str]:
    """A guard that says what it is told."""
    with server(
        lambda path: http(200, json.dumps({"policies": policies} if path.endswith("policies") else answer).encode())
    ) as url:
        yield url


@pytest.mark.parametrize("case", [*LISTED, *ANSWERED])
def test_the_command_line_names_the_server_that_talks_nonsense(case, tmp_path, capsys):
    policies, answer, word = [POLICY], ANSWER, ""
    if case in LISTED:
        policies, word = LISTED[case]
    else:
        changed, word = ANSWERED[case]
        answer = {**ANSWER, **changed}
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with talking(policies, answer) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 1
    said = capsys.readouterr().err
    assert url in said
    assert word in said
    assert "\x1b" not in said
    assert len(said) < 1000
    assert not (tmp_path / "v.parquet").exists()


def test_a_right_answer_is_saved(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    with talking([POLICY], {**ANSWER, "usage": {}}) as url:
        command = ["score", f"scorer={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
        assert main(command) == 0


@pytest.mark.parametrize("changed", [{"verdicts": []}, {"verdicts": [FLAGGED]}, {"action": "perhaps"}])
def test_an_answer_that_contradicts_itself_blocks(changed):
    with talking([], {**ANSWER, **changed}) as url, alora.Guard(url, 5) as guard:
        assert guard.check(MESSAGES).blocked


SKIPPED = {**MISSED, "policy": "q", "adapter": "q@0", "status": "skipped"}


@pytest.mark.parametrize(
    ("verdicts", "fields", "blocked"),
    [
        ([VERDICT], {}, False),
        ([VERDICT], {"policies": ["p@012345678901", "tag:all"]}, False),
        ([MISSED], {"on_failure": "open"}, False),
        ([{**MISSED, "flagged": True}], {}, True),
        ([FLAGGED, SKIPPED], {"stop_on_block": True}, True),
    ],
)
def test_an_answer_to_what_was_asked_stands(verdicts, fields, blocked):
    complete = all(verdict["status"] == "ok" for verdict in verdicts)
    answer = {**ANSWER, "verdicts": verdicts, "complete": complete, "action": "block" if blocked else "allow"}
    with talking([], answer) as url, alora.Guard(url, 5) as guard:
        assert guard.check(MESSAGES, **fields).blocked == blocked


@pytest.mark.parametrize(
    ("verdicts", "fields"),
    [
        ([], {"policies": ["p"]}),
        ([VERDICT], {"policies": ["p", "q"]}),
        ([VERDICT], {"policies": ["p@aaaaaaaa"]}),
        ([{**VERDICT, "policy": "p@aaaaaaaa", "adapter": "p@aaaaaaaa@1"}], {"policies": ["p@aaaaaaaa"]}),
        ([MISSED], {}),
        ([VERDICT, SKIPPED], {}),
    ],
)
def test_an_answer_to_less_than_was_asked_is_none(verdicts, fields):
    complete = all(verdict["status"] == "ok" for verdict in verdicts)
    with (
        talking([], {**ANSWER, "verdicts": verdicts, "complete": complete}) as url,
        alora.Guard(url, 5) as guard,
        pytest.raises(CheckFailed, match="is not a guard"),
    ):
        guard.check(MESSAGES, **fields)


CIRCULAR: list = [{"role": "user"}]
CIRCULAR[0]["content"] = CIRCULAR
DEEP: list = []
for _ in range(100_000):  # Python 3.12 writes 5,000
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "messages",
    [
        None, 5, {}, "x", iter(MESSAGES), [[]], CIRCULAR, [{"role": "user", "content": DEEP}],
        [{"role": "user", "content": "x", 1: 2}], [{"role": "user", "content": {1, 2}}],
    ],
)  # fmt: skip
def test_what_are_no_messages_is_refused(messages):
    with talking([], ANSWER) as url, alora.Guard(url, 5) as guard, pytest.raises(PromptRefused):
        guard.check(messages)
