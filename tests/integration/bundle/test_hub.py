"""Fetching and pushing, against a small HTTP server that speaks the hub's protocol."""

import json
from collections.abc import Iterator

import pytest

from alora.bundle.artifact import open_artifact
from alora.bundle.hub import fetch_bundle, push_bundle
from alora.bundle.read import load_battery, load_bundle
from alora.config.compose import load_recipe
from alora.errors import BundleError
from alora.received import CHANGED
from tests.integration.bundle.hub_server import COMMIT, Hub, serving


@pytest.fixture
def hub(folder, tmp_path, monkeypatch) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_user")
    with serving(Hub(files={file.name: file.read_bytes() for file in folder.iterdir()})) as hub:
        yield hub


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
    with pytest.raises(BundleError) as caught:
        load_battery(fetched.folder.parent)
    assert caught.value.code == CHANGED


@pytest.mark.parametrize("name", ["../x", "a--b/c..d", "me/advice@../../x"])
def test_an_impossible_name(name, hub):
    with pytest.raises(BundleError):
        fetch_bundle(name, hub.endpoint)
    assert hub.sent == []


def test_one_commit_with_the_bundle_and_nothing_else(hub, folder):
    (folder / "notes.txt").write_text("private")
    url = push_bundle(folder, "me/advice", endpoint=hub.endpoint)
    assert url.endswith(f"/me/advice/commit/{COMMIT}")
    (created,) = hub.created
    assert created["name"] == "advice"
    assert created["organization"] == "me"
    assert created.get("private", created.get("visibility")) in (True, "private")
    assert len(hub.commits) == 1
    assert hub.pushed() == {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "notes.txt"}
    header = hub.commits[0][0]["value"]
    assert load_bundle(folder).manifest.adapter_digest[:12] in header["summary"]
    assert hub.tokens == {"Bearer hf_of_the_user"}
    assert hub.cards == [(folder / "README.md").read_text()]


def test_a_damaged_bundle_is_not_sent(hub, folder):
    (folder / "golden.jsonl").write_text("")
    with pytest.raises(BundleError, match="cut short"):
        push_bundle(folder, "me/advice", endpoint=hub.endpoint)
    assert hub.created == []
