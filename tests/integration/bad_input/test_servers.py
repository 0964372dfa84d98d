"""``alora score scorer=http://...`` against servers that talk nonsense, or not at all."""

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat

import pytest

from alora.serving import completions
from tests.integration.bad_input.conftest import Case, breaches

SILENCE = None
Answer = bytes | Iterator[bytes] | None  # of pieces: one each tenth of a second, until the other side gives up
PLUGIN = (400, b'{"message": "the invocation tokens are not in the prompt"}')


def http(status: int, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.0 {status} X\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def completion(logprobs: object) -> bytes:
    return http(200, json.dumps({"choices": [{"logprobs": logprobs}]}).encode())


def drops(start: bytes, then: bytes = b"x") -> Iterator[bytes]:
    return chain([start], repeat(then))


LISTS = {  # what GET /v1/models gives, and what must be said
    "not UTF-8": (http(200, b"\xff\xfe"), "not an OpenAI-compatible server"),
    "cut": (http(200, b'{"data": [', length=500), "does not answer (peer closed connection"),
    "an empty object": (http(200, b"{}"), "not an OpenAI-compatible server: it answered '{}'"),
    "an empty list": (http(200, b"[]"), "not an OpenAI-compatible server: it answered '[]'"),
    "null": (http(200, b"null"), "not an OpenAI-compatible server: it answered 'null'"),
    "models that are numbers": (http(200, b'{"data": [1, 2]}'), "not an OpenAI-compatible server"),
    "nested without end": (http(200, b"[" * 100_000), "not an OpenAI-compatible server"),
    "a page": (http(200, b"<html>\n" * 500), "not an OpenAI-compatible server: it answered '<html>"),
    "an error, cut": (http(500, b"no", length=500), "does not answer (peer closed connection"),
    "an error of many lines": (http(502, b"<p>\n" * 500 + b"\x1b[2J"), "answered 502: <p>"),
    "a guard alone": (http(404, b'{"detail":"Not Found"}'), "has no /v1/models, so no vLLM runs there"),
    "no key": (http(401, b"Unauthorized"), "answered 401: Unauthorized"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "does not answer"),
    "nothing": (b"", "does not answer"),
    "silence": (SILENCE, "does not answer (ReadTimeout)"),
    "its headers drop by drop": (drops(b"HTTP/1.0 200 X\r\nA: "), "does not answer (no whole answer after 4 s)"),
    "its body drop by drop": (
        drops(b"HTTP/1.0 200 X\r\nContent-Length: 99999\r\n\r\n"),
        "does not answer (no whole answer after 4 s)",
    ),
    "to go on, without end": (
        drops(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        "does not answer (no whole answer after 4 s)",
    ),
    "a model that clears the screen": (http(200, b'{"data": [{"id": "\\u001b[2J"}]}'), "serves \\u001b[2J, not"),
    "ten thousand strangers": (
        http(200, json.dumps({"data": [{"id": f"model-{number}"} for number in range(10_000)]}).encode()),
        "serves model-0, ",
    ),
}
GOLDEN = {  # what POST /v1/completions gives to a golden row
    "not UTF-8": (http(200, b"\xff\xfe"), 2, "not an OpenAI-compatible server"),
    "cut": (http(200, b'{"choices": [', length=500), 2, "does not answer (peer closed connection"),
    "an empty object": (http(200, b"{}"), 2, "not an OpenAI-compatible server: it answered '{}'"),
    "an empty list": (http(200, b"[]"), 2, "not an OpenAI-compatible server: it answered '[]'"),
    "no choices": (http(200, b'{"choices": []}'), 2, "not an OpenAI-compatible server"),
    "no log-probabilities": (completion(None), 1, "--logprobs-mode processed_logprobs"),
    "no top log-probabilities": (completion({"top_logprobs": []}), 1, "--logprobs-mode processed_logprobs"),
    "other tokens'": (completion({"top_logprobs": [{"token_id:1": -1.0}]}), 1, "--logprobs-mode processed_logprobs"),
    "words for numbers": (completion({"top_logprobs": [{"token_id:279": "high", "token_id:276": 0}]}), 1, "'high'"),
    "no numbers": (
        completion({"top_logprobs": [{"token_id:279": float("nan"), "token_id:276": 0}]}),
        1,
        "--logprobs-mode processed_logprobs",
    ),
    "no probabilities": (
        completion({"top_logprobs": [{"token_id:279": 5.0, "token_id:276": 99.0}]}),
        1,
        "--logprobs-mode processed_logprobs",
    ),
}


@contextmanager
def server(answer_to: Callable[[str], Answer]) -> Iterator[str]:
    """The URL of a server that gives the bytes that ``answer_to`` has for a path, and hangs up."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode()
            length = 0
            while header := self.rfile.readline().strip():
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            self.rfile.read(length)
            answer = answer_to(path)
            if answer is SILENCE:
                self.rfile.read()  # until the other side has given up
            elif isinstance(answer, bytes):
                self.wfile.write(answer)
            else:
                with suppress(OSError):
                    for piece in answer:
                        self.wfile.write(piece)
                        time.sleep(0.1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=partial(listening.serve_forever, 0.02))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture
def check(place, here, capsys, monkeypatch):
    """Score on a server that answers as it is told, and check the promises."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    manifest = json.loads((place / "run/bundle/alora.json").read_text())
    name = f"toy@{manifest['adapter_digest'][:12]}"
    listed = http(200, json.dumps({"data": [{"id": name}]}).encode())

    def run(word: str, exit_code: int = 2, models: Answer = listed, answers: tuple[Answer, ...] = ()) -> list[str]:
        given = chain(answers, repeat(answers[-1]) if answers else ())  # the last one goes on
        with server(lambda path: models if path == "/v1/models" else next(given)) as url:
            command = f"score artifact={{place}}/run {{place}}/talk.json scorer={url}"
            return breaches(Case(command, [url, word], exit_code), place, here, capsys)

    return run


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_models(name, check, monkeypatch):
    monkeypatch.setattr(completions, "_PROBE_SECONDS", 2)
    models, word = LISTS[name]
    assert check(word, models=models) == []


@pytest.mark.parametrize("name", GOLDEN)
def test_an_answer_to_a_golden_row(name, check):
    answer, exit_code, word = GOLDEN[name]
    assert check(word, exit_code, answers=(http(*PLUGIN), answer)) == []


def test_a_server_without_the_plugin(check):
    assert check("plugin is not active there", 1, answers=(http(200, b"{}"),)) == []


def test_a_key_that_no_header_carries_is_not_shown(check, monkeypatch):
    monkeypatch.setenv(completions.KEY, "secret\nkey")
    (breach,) = check("$VLLM_API_KEY holds a character")
    assert breach.endswith(
        "is not in: alora: $VLLM_API_KEY holds a character that no HTTP header carries; export it again\n"
    )
