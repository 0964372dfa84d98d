"""A server that gives whatever bytes a test has it give."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial


def http(status: int, body: bytes, length: int | None = None) -> bytes:
    return f"HTTP/1.0 {status} X\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@contextmanager
def server(answer_to: Callable[[str], bytes]) -> Iterator[str]:
    """The URL of a server that gives the bytes that ``answer_to`` has for a path, and hangs up."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode()
            length = 0
            while header := self.rfile.readline().strip():
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            self.rfile.read(length)
            self.wfile.write(answer_to(path))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=partial(listening.serve_forever, 0.02))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
