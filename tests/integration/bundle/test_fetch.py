"""Fetching from the hub, against a small HTTP server that serves one repository as the hub does."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import pytest

from alora.bundle.artifact import open_artifact
from alora.bundle.hub import fetch_bundle
from alora.bundle.read import load_battery, load_bundle
from alora.config.compose import load_recipe
from alora.errors import BundleError
from tests.integration.bundle.hub_server import COMMIT, Answer, serving


@dataclass
class Hub:
    """A hub with the repository ``me/advice``, whose files a test may change."""

    endpoint: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def answer(self, path: str, *_) -> Answer:
        if path.startswith("/api/models/me/advice/tree/"):
            files = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()]
            return 200, {}, json.dumps(files).encode()
        if path.startswith("/api/models/me/advice"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, {}, json.dumps({"id": "me/advice", "sha": COMMIT, "siblings": siblings}).encode()
        name = path.removeprefix(f"/me/advice/resolve/{COMMIT}/")
        if name in self.files:
            self.sent.append(name)
            content = self.files[name]
            return 200, {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}, content
        return 404, {"X-Error-Code": "RepoNotFound"}, b""


@pytest.fixture
def hub(folder, tmp_path, monkeypatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    state = Hub(files={file.name: file.read_bytes() for file in folder.iterdir()})

    with serving(state.answer) as state.endpoint:
        yield state


def test_a_bundle_and_nothing_else_is_fetched(hub, folder):
    hub.files |= {"pytorch_model.bin": b"a pickle", "modeling.py": b"import os", "sub/alora.json": b"{}"}
    fetched = load_bundle(fetch_bundle("me/advice@main", hub.endpoint))
    assert fetched.manifest == load_bundle(folder).manifest
    assert set(hub.sent) == {file.name for file in folder.iterdir()}


def test_a_battery_is_fetched_with_the_bundles_that_it_lists(hub, folder, monkeypatch):
    bundle, listed = dict(hub.files), {"schema_version": 1, "bundles": ["advice"]}
    hub.files = {f"{name}/{file}": content for name in ("advice", "other") for file, content in bundle.items()}
    hub.files |= {"battery.json": json.dumps(listed).encode(), "advice/modeling.py": b"import os"}
    (fetched,) = load_battery(fetch_bundle("me/advice", hub.endpoint))
    assert fetched.manifest == load_bundle(folder).manifest
    assert set(hub.sent) == {"battery.json", *(f"advice/{file}" for file in bundle)}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for key in ("artifact", "battery"):
        recipe = load_recipe("score", [f"{key}=me/advice", "conversation=-"], print)
        assert [found.manifest for found in open_artifact(recipe.artifact, None, (), load_bundle)[0]] == [
            fetched.manifest
        ]
    weights = next(path for path in fetched.folder.iterdir() if path.name.endswith(".safetensors"))
    weights.unlink()
    weights.symlink_to("../../blobs/" + "0" * 64)  # one step short, so out of the hub's own blobs
    with pytest.raises(BundleError, match="is a link"):
        load_battery(fetched.folder.parent)


@pytest.mark.parametrize("name", ["../x", "a--b/c..d", "me/advice@../../x"])
def test_an_impossible_name(name, hub):
    with pytest.raises(BundleError):
        fetch_bundle(name, hub.endpoint)
    assert hub.sent == []
