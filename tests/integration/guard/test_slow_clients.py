"""Clients that send slowly, stop in the middle, or close one direction, against a real HTTP server."""

import json
import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from alora.guard.standalone import make_app
from tests.clients import listening
from tests.integration.guard.conftest import MESSAGES

BODY = json.dumps({"messages": MESSAGES}).encode()
HEAD = f"POST /v1/guard HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"


@pytest.fixture
def connect(guard):
    with listening(make_app(guard), http="h11") as url, ExitStack() as stack:

        def connect(sent: bytes) -> socket.socket:
            address = urlsplit(url)
            client = stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
            client.sendall(sent)
            return client

        yield connect


def answer(client: socket.socket) -> tuple[int, dict]:
    with client.makefile("rb") as lines:
        status = int(lines.readline().split()[1])
        length = 0
        while line := lines.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, json.loads(lines.read(length))


def whole(connect) -> tuple[int, dict]:
    return answer(connect(HEAD.encode() + BODY))


def test_a_slow_client_gets_its_verdicts(connect):
    client = connect(HEAD.encode())
    for at in range(0, len(BODY), 10):
        client.sendall(BODY[at : at + 10])
        time.sleep(0.01)
    status, found = answer(client)
    assert (status, found["complete"]) == (200, True)


@pytest.mark.parametrize("sent", [HEAD.encode()[:30], HEAD.encode(), HEAD.encode() + BODY[:20], HEAD.encode() + BODY])
def test_a_half_closed_client_leaves_nothing_behind(connect, guard, sent):
    client = connect(sent)
    client.shutdown(socket.SHUT_WR)
    client.recv(2**16)  # an answer or the end, as the server likes: to it, a half-closed client may be gone
    status, found = whole(connect)
    assert (status, found["complete"]) == (200, True)
    until = time.monotonic() + 30
    while any(guard._held.values()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(guard._held.values())
