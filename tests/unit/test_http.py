"""What a server that is given the key may say of it."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from alora.closing import Waiting
from alora.config.secrets import HIDDEN, KEY
from alora.errors import AloraError, PromptRefused
from alora.http import REQUEST_ID, Http, request_id
from alora.serving.guard import Guard

SECRET = r"""s3cr3t/canary"key'with\all"""
LONG = "sk-" + "0123456789abcdef" * 5  # cut in the middle by a message's bounds


@contextmanager
def raw(answer: bytes, *seconds: float):
    """A server that answers one connection after the other by these bytes: the first after so many seconds, the next
    after as many as are given next, or the last time again."""
    delays = [*seconds] or [0.0]

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                request = b""
                while not request.endswith(b"}") and (more := connection.recv(65536)):
                    request += more  # all of it: a close with some of it unread would cut the answer
                time.sleep(delays.pop(0) if len(delays) > 1 else delays[0])
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def as_json(key: str) -> str:
    return json.dumps(key)[1:-1]


def escaped(key: str) -> str:
    return "".join(f"\\u{ord(character):04X}" for character in key)


OK, END = "HTTP/1.1 200 OK\r\n", "\r\n\r\n"
ONCE = f"{OK}Connection: close\r\nContent-Length: 2{END}ok".encode()  # else the next request may take its connection
ANSWERS = {
    "status line": lambda key: f"HTTP/1.1 {key} OK{END}",
    "no HTTP": lambda key: f"{key} is your key{END}",
    "header line": lambda key: f"{OK}{key} bad header{END}",
    "chunk header": lambda key: f"{OK}Transfer-Encoding: chunked{END}{key}\r\n",
    "encoding": lambda key: f"{OK}Content-Encoding: {key}\r\nContent-Length: 0{END}",
    "location": lambda key: f"HTTP/1.1 302 F\r\nLocation: /login?x={key}\r\nContent-Length: 0{END}",
    "long location": lambda key: f"HTTP/1.1 302 F\r\nLocation: /{'x' * 260}{key}\r\nContent-Length: 0{END}",
    "plain text": lambda key: f"HTTP/1.1 400 B{END}not {key}",
    "message": lambda key: f'HTTP/1.1 400 B{END}{{"error": {{"message": "not {as_json(key)}"}}}}',
    "escaped message": lambda key: f'HTTP/1.1 400 B{END}{{"error": {{"message": "not {escaped(key)}"}}}}',
    "escaped in part": lambda key: (
        f'HTTP/1.1 400 B{END}{{"error": {{"message": "{escaped(key[0])}{as_json(key[1:])}"}}}}'
    ),
}


def with_causes(error: BaseException) -> list[BaseException]:
    """What a traceback shows."""
    errors = [error]
    while (cause := errors[-1].__cause__) is not None:
        errors.append(cause)
    return errors


@pytest.mark.parametrize("key", [SECRET, LONG], ids=["all signs", "long"])
@pytest.mark.parametrize("name", ANSWERS)
def test_no_error_shows_the_key(name, key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    with raw(ANSWERS[name](key).encode()) as url, Guard(url, timeout=5) as guard, pytest.raises(AloraError) as caught:
        guard.check([{"role": "user", "content": "Hello"}])
    assert HIDDEN in str(caught.value)
    assert not [error for error in with_causes(caught.value) if key[:6] in str(error)]


def test_a_fork_while_another_thread_begins_a_request_leaves_the_child_its_own_lock():
    with raw(f"{OK}Content-Length: 2{END}ok".encode()) as url, Waiting(Http) as wait:
        assert wait(lambda http: http.send(url, {}, silence=5)) == (200, "ok")
        with wait._lock():  # as a thread that the child lacks
            child = os.fork()
            if not child:
                signal.alarm(30)
                os._exit(0 if wait(lambda http: http.send(url, {}, silence=5)) == (200, "ok") else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_waits_for_a_connection_does_not_count_that_as_silence():
    """80 answers of 0.05 s each, two at a time: together they take longer than the silence that ends one."""

    async def ask(url):
        http = Http(2)
        sent = [http.send(url, {}, 2) for _ in range(80)]
        answers = await asyncio.gather(*sent)
        await http.close()
        return answers

    with raw(ONCE, 0.05) as url:
        assert asyncio.run(ask(url)) == [(200, "ok")] * 80


def test_who_waits_for_a_connection_to_a_silent_server_does_not_wait_for_each_before():
    async def ask(url):
        http = Http(1)
        errors = await asyncio.gather(*(http.send(url, None, 1) for _ in range(50)), return_exceptions=True)
        await http.close()
        return [str(error) for error in errors]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        first, *others = asyncio.run(ask(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    assert "ReadTimeout" in first
    assert len([error for error in others if "does not answer (nor did it to the requests before" in error]) == 49
    assert not [error for error in others if error.count("does not answer") > 1]


def test_callers_who_give_up_are_no_silence_of_the_server():
    """The first is cancelled long before its answer; the next one has waited for half of the silence by then."""

    async def ask(url):
        http = Http(1)
        first = asyncio.ensure_future(http.send(url, {}, 4))
        second = asyncio.ensure_future(http.send(url, {}, 4))
        await asyncio.sleep(2.5)
        first.cancel()
        answer = await second
        await http.close()
        return answer

    with raw(ONCE, 3, 0) as url:
        assert asyncio.run(ask(url)) == (200, "ok")


@contextmanager
def twice(answer: str):
    """A server whose first answer on each connection is followed by a copy of itself; ``{id}`` is the request's."""

    class Twice(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        copies = 2

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(answer.replace("{id}", self.headers[REQUEST_ID]).encode() * self.copies)
            self.copies = 1

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Twice) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_to_another_request_is_none():
    async def ask(url):
        http, said = Http(1), []
        for own in [request_id() for _ in range(3)]:
            with pytest.raises(AloraError) if len(said) == 1 else nullcontext() as caught:
                _, text = await http.send(url, {}, 5, own)
                said.append(text.replace(own[REQUEST_ID], "its own"))
            if caught:
                said.append(str(caught.value))
        await http.close()
        return said

    with twice(f'{OK}Content-Length: 37{END}{{"id": "cmpl-{{id}}"}}') as url:
        first, second, third = asyncio.run(ask(url))
    assert "its answer is to another request" in second
    assert first == third == '{"id": "cmpl-its own"}'


def test_a_refusal_that_quotes_an_id_is_a_refusal():
    quoted = b'HTTP/1.1 400 B\r\n\r\n{"error": {"message": "role is alora-0123456789abcdef"}}'
    with raw(quoted) as url, Guard(url, timeout=5) as guard, pytest.raises(PromptRefused, match="role is alora-"):
        guard.check([{"role": "alora-0123456789abcdef", "content": "Hello"}])
