"""What a server that is given the key may say of it."""

import socket
import threading
from contextlib import contextmanager, nullcontext
from traceback import format_exception

import pytest

from alora.client.guard import Guard
from alora.config.secrets import KEY
from alora.errors import AloraError, ConfigError
from alora.transport import Http, Unreachable, Waiting, refusal
from tests.unit.llm.endpoint import endpoint

LONG = "sk-" + "0123456789abcdef" * 5  # cut in the middle by a message's bounds


@contextmanager
def raw(answer: bytes):
    """A server that answers one connection after the other by these bytes."""

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
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


OK, END = "HTTP/1.1 200 OK\r\n", "\r\n\r\n"
ANSWERS = {
    "no HTTP": lambda key: f"{key} is your key{END}",
    "header line": lambda key: f"{OK}{key} bad header{END}",
    "location": lambda key: f"HTTP/1.1 302 F\r\nLocation: /login?x={key}\r\nContent-Length: 0{END}",
    "plain text": lambda key: f"HTTP/1.1 400 B{END}not {key}",
    "message": lambda key: f'HTTP/1.1 400 B{END}{{"error": {{"message": "not {key}"}}}}',
    "no guard": lambda key: f'{OK}Content-Length: {len(key) + 10}{END}{{"id": "{key}"}}',
}


@pytest.mark.parametrize(("status", "body"), [(302, None), (307, {"prompt": [1, 2]}), (308, {"prompt": [1, 2]})])
def test_neither_key_nor_text_follows_to_another_place(status, body, monkeypatch):
    monkeypatch.setenv(KEY, "s3cret")
    with endpoint(lambda number, body: {"data": []}) as elsewhere:
        moved = (status, {"Location": f"{elsewhere.url}/x"}, {"data": []})
        with endpoint(lambda number, body: moved) as named, Waiting(Http) as wait:
            answer, text = wait(lambda http: http.exchange(f"{named.url}/guard", body, 5))
        assert isinstance(refusal(named.url, answer.status_code, text), ConfigError)
        assert elsewhere.bodies == []
        assert named.headers[0]["authorization"] == "Bearer s3cret"  # the one that was named has both


@pytest.mark.parametrize("name", ANSWERS)
def test_no_error_shows_the_key(name, monkeypatch):
    monkeypatch.setenv(KEY, LONG)
    with raw(ANSWERS[name](LONG).encode()) as url, Guard(url, timeout=5) as guard, pytest.raises(AloraError) as caught:
        guard.check([{"role": "user", "content": "Hello"}])
    assert LONG[:6] not in "".join(format_exception(caught.value, chain=True))


def test_an_answer_to_another_request_is_none():
    said = {"id": "guard-alora-0123456789abcdef", "action": "allow", "complete": True, "verdicts": []}
    said |= {"usage": dict.fromkeys(("prefix_tokens", "suffix_tokens", "computed_tokens"), 0) | {"policies": 1}}
    said |= {"timing_ms": {"render": 0, "total": 0}}
    for content, refused in ((said, True), (said | {"id": "guard-of-a-proxy"}, False)):
        refusing = pytest.raises(Unreachable) if refused else nullcontext()
        with endpoint(lambda number, body, content=content: content) as named, Guard(named.url[:-3]) as guard, refusing:
            assert guard.check([{"role": "user", "content": "Hello"}]).blocked
