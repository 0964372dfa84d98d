"""A real HTTP server that speaks the chat completion protocol, well or badly, as the test says."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[[int, dict[str, Any]], Any]  # number of the request and its body → what to send


def completion(text: Any, tokens: tuple[int, int] = (100, 10)) -> dict[str, Any]:
    """A whole answer of a model that said ``text``."""
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }


def says(label: str, confidence: float = 90) -> dict[str, Any]:
    return completion(json.dumps({"label": label, "confidence": confidence}))


class Endpoint:
    """What was asked, and where."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []  # names in lower case
        self.url = ""
        self.lock = threading.Lock()


@contextmanager
def endpoint(behaviour: Behaviour, port: int = 0) -> Iterator[Endpoint]:
    """Serve ``behaviour``: a dict is a JSON body, bytes a raw one, an int a bare status, a float seconds of silence."""
    seen = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            with seen.lock:
                number = len(seen.bodies)
                seen.bodies.append(body)
                seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = behaviour(number, body)
            status, headers = 200, {}
            if isinstance(answer, tuple):
                status, headers, answer = answer
            if isinstance(answer, float):
                time.sleep(answer)
                answer = says("ok")
            if isinstance(answer, int):
                status, answer = answer, {"error": {"message": f"status {answer}"}}
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has given up waiting

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
