"""The client of a server elsewhere: where its key and its text go."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from alora.config.secrets import KEY
from alora.errors import ConfigError
from alora.serving.client import RemoteEngine


@contextmanager
def server(status: int = 200, location: str | None = None):
    """A server that answers everything alike; what reached it."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers), self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            body = json.dumps({"data": []}).encode()
            self.send_response(status)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}", seen
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, {"prompt": [1, 2]}])
def test_neither_key_nor_text_follows_to_another_place(status, body, monkeypatch):
    monkeypatch.setenv(KEY, "s3cret")
    with server() as (elsewhere, stolen), server(status, f"{elsewhere}/x") as (url, seen):
        with pytest.raises(ConfigError, match=f"answered {status} and sends on to {elsewhere}/x"):
            asyncio.run(RemoteEngine(url)._send("/v1/models", body))
        assert stolen == []
        assert seen[0][1]["Authorization"] == "Bearer s3cret"  # the one that was named has both


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match=KEY) as caught:
        RemoteEngine("http://me:s3cret@127.0.0.1:8000")
    assert "s3cret" not in str(caught.value)
