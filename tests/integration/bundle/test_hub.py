"""Pushing, against a small HTTP server that speaks the hub's protocol and keeps what it is sent."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from alora.bundle.hub import push_bundle
from alora.bundle.read import load_bundle
from alora.errors import BundleError
from tests.integration.bundle.hub_server import COMMIT, Answer, serving


@dataclass
class Hub:
    """A hub of one repository."""

    endpoint: str = ""
    created: list[dict] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    commits: list[list[dict]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def files(self) -> dict[str, bytes]:
        """The files of the last commit."""
        lines = [line["value"] for line in self.commits[-1] if line["key"] == "file"]
        return {line["path"]: base64.b64decode(line["content"]) for line in lines}

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        self.tokens.add(headers.get("Authorization"))
        return 200, {"Content-Type": "application/json"}, json.dumps(self.of(path, body)).encode()

    def of(self, path: str, body: bytes) -> dict:
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

    with serving(state.answer) as state.endpoint:
        yield state


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
