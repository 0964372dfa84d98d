"""What is asked of the hub."""

import json

import pytest

from alora.bundle import hub


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The calls of the hub's client, which has a battery."""
    calls = []
    (tmp_path / "battery.json").write_text(json.dumps({"schema_version": 1, "bundles": ["advice", "a[b]*"]}))

    def snapshot_download(name, **more):
        calls.append((name, more))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return calls


@pytest.mark.parametrize(("name", "revision"), [("me/battery@v1", "v1"), ("me/battery", None)])
def test_the_revision_that_is_named_is_fetched(name, revision, asked):
    hub.fetch_bundle(name)
    assert [(repository, more["revision"]) for repository, more in asked] == [("me/battery", revision)] * 2


def test_a_bundles_name_is_no_pattern(asked):
    hub.fetch_bundle("me/battery")
    wanted = asked[1][1]["allow_patterns"]
    assert {"advice/alora.json", "a[[]b][*]/alora.json"} <= set(wanted)
    assert not any(pattern.startswith("a[b]*") for pattern in wanted)
