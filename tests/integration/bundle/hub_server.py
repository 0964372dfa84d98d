"""An HTTP server that answers as a hub of one repository, and keeps what it is sent."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


@dataclass
class Hub:
    """A hub with the repository ``me/advice``, whose files a test may change."""

    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    created: list[dict] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    commits: list[list[dict]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def pushed(self) -> dict[str, bytes]:
        """The files of the last commit."""
        lines = [line["value"] for line in self.commits[-1] if line["key"] == "file"]
        return {line["path"]: base64.b64decode(line["content"]) for line in lines}

    def content(self, path: str) -> bytes | None:
        name = path.removeprefix(f"/me/advice/resolve/{COMMIT}/")
        if name in self.files:
            self.sent.append(name)
        return self.files.get(name)

    def document(self, path: str, body: bytes) -> object:
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return {"url": f"{self.endpoint}/me/advice"}
        if path == "/api/validate-yaml":
            self.cards.append(json.loads(body)["content"])
            return {"errors": [], "warnings": []}
        if path.startswith("/api/models/me/advice/preupload/"):
            names = [file["path"] for file in json.loads(body)["files"]]
            return {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        if path.startswith("/api/models/me/advice/commit/"):
            self.commits.append([json.loads(line) for line in body.splitlines()])
            return {"commitUrl": f"{self.endpoint}/me/advice/commit/{COMMIT}", "commitOid": COMMIT}
        if path.startswith("/api/models/me/advice/tree/"):
            return [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()]
        if path.startswith("/api/models/me/advice"):
            return {"id": "me/advice", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
        return None


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, listening."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.tokens.add(self.headers.get("Authorization"))
            path = self.path.split("?")[0]
            if (content := hub.content(path)) is not None:
                headers = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            else:
                content = json.dumps(hub.document(path, body)).encode()
                headers = {"X-Error-Code": "RepoNotFound"} if content == b"null" else {}
            self.send_response(404 if "X-Error-Code" in headers else 200)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()
