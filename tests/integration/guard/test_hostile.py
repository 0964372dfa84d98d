"""``alora.Guard`` and ``alora score engine=URL`` against a server that is no guard, or a bad one."""

import asyncio
import gzip
import os
from itertools import repeat

import pytest

import alora
from alora.cli import main
from alora.config.secrets import KEY
from alora.errors import AloraError, ConfigError
from alora.serving import http as serving_http
from tests.integration.bad_input.test_servers import drops, http, server

MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]
COMPRESSED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
ZEROS = gzip.compress(bytes(2**20))


def in_text(charset: bytes) -> bytes:
    return b"HTTP/1.1 500 X\r\nContent-Type: text/plain; charset=%s\r\nContent-Length: 80000\r\n\r\n" % charset + (
        b"a.b " * 20_000
    )


ANSWERS = {  # and what must be said
    "a bomb": (COMPRESSED % len(ZEROS) + ZEROS, "compressed by 'gzip'"),
    "no gzip at all": (COMPRESSED % 3 + b"abc", "compressed by 'gzip'"),
    "no end": (repeat(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2**20)), "longer than 0 MiB"),
    "its headers drop by drop": (drops(b"HTTP/1.1 200 X\r\nA: "), "no whole answer after 0.6 s"),
    "its body drop by drop": (
        drops(b"HTTP/1.1 200 X\r\nContent-Length: 99999\r\n\r\n"),
        "no whole answer after 0.6 s",
    ),
    "to go on, without end": (drops(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "no whole answer after 0.6 s"),
    "nested without end": (http(200, b"[" * 500_000), "is no guard"),
    "no text": (in_text(b"rot13"), "answered 500: 'a.b a.b"),
    "a text of names": (in_text(b"idna"), "answered 500: 'a.b a.b"),
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
    monkeypatch.setattr(serving_http, "LONGEST", 2**19)
    answer, word = ANSWERS[name]
    with server(lambda path: answer) as url, pytest.raises(AloraError, match=word):
        way(url)


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
        command = ["score", f"engine={url}", f"data={tmp_path}/log.jsonl", f"output={tmp_path}/v.parquet"]
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
