"""Pushing, against a small HTTP server that speaks the hub's protocol and keeps what it is sent."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from alora.bundle.hub import push_bundle
from alora.bundle.read import load_bundle
from alora.errors import BundleError

COMMIT = "a" * 40


@dataclass
class Hub:
    """A hub of one repository. ``status`` other than 200 is its answer to everything."""

    endpoint: str = ""
    status: int = 200
    created: list[dict] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    commits: list[list[dict]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def files(self) -> dict[str, bytes]:
        """The files of the last commit."""
        lines = [line["value"] for line in self.commits[-1] if line["key"] == "file"]
        return {line["path"]: base64.b64decode(line["content"]) for line in lines}

    def answer(self, path: str, body: bytes) -> dict:
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
        if path == "/api/models/me/advice":
            return {"id": "me/advice", "sha": COMMIT, "siblings": []}
        raise AssertionError(f"the client asked for {path}, which this server does not know")


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_user")
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.tokens.add(self.headers.get("Authorization"))
            status = 409 if self.path == "/api/repos/create" and state.created else state.status
            there = {"error": "no", "url": f"{state.endpoint}/me/advice"}
            answer = there if status != 200 else state.answer(self.path.split("?")[0], body)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_commit_with_the_bundle_and_nothing_else(hub, folder):
    (folder / "notes.txt").write_text("private")
    url = push_bundle(folder, "me/advice", endpoint=hub.endpoint)
    assert url.endswith(f"/me/advice/commit/{COMMIT}")
    (created,) = hub.created
    assert created["name"] == "advice"
    assert created["organization"] == "me"
    assert created.get("private", created.get("visibility")) in (True, "private")
    assert len(hub.commits) == 1
    assert hub.files() == {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "notes.txt"}
    header = hub.commits[0][0]["value"]
    assert load_bundle(folder).manifest.adapter_digest[:12] in header["summary"]
    assert hub.tokens == {"Bearer hf_of_the_user"}
    assert hub.cards == [(folder / "README.md").read_text()]


def test_a_damaged_bundle_is_not_sent(hub, folder):
    (folder / "golden.jsonl").write_text("")
    with pytest.raises(BundleError, match="cut short"):
        push_bundle(folder, "me/advice", endpoint=hub.endpoint)
    assert hub.created == []
