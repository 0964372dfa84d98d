"""Where a policy's folder may lie, whatever a request names; and what the file of what is served may hold."""

import json

import pytest

from alora.errors import BundleError
from alora.guard.serving_set import FILE, ServingSet


@pytest.fixture
def root(tmp_path):
    for folder in ("outside/bundle", "root/bundle", "root/group/bundle"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/within").symlink_to(tmp_path / "root/group")
    (tmp_path / "root/group/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/file").touch()
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("name", "folder"), [("bundle", "bundle"), ("./group/bundle", "group/bundle"), ("within/bundle", "group/bundle")]
)
def test_a_folder_below_the_root(root, name, folder):
    assert ServingSet(root).folder(name) == (root / folder).resolve()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside/bundle", "group/../../outside/bundle", "/etc", "nowhere", "file",
     "link/bundle", "group/link/bundle", "group/link"],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(root, name):
    with pytest.raises(BundleError):
        ServingSet(root).folder(name)


ENTRY = {"policy": "a", "bundle": "a", "digest": "0" * 64, "manifest": "0" * 64, "action": "block", "tags": []}
DAMAGES = {
    "cut": b"{",
    "no text": b"\xff",
    "of another version": {"schema_version": 2, "policies": [ENTRY]},
    "without a policy": {"schema_version": 1, "policies": []},
    "with an action that is none": {"schema_version": 1, "policies": [ENTRY | {"action": "shadow"}]},
    "with a policy twice": {"schema_version": 1, "policies": [ENTRY, ENTRY | {"bundle": "b", "action": "flag"}]},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(tmp_path, damage):
    content = DAMAGES[damage]
    (tmp_path / FILE).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(BundleError):
        ServingSet(tmp_path).read()


def test_what_cannot_be_read_is_refused_and_a_logged_version_is_none_of_a_policy_twice(tmp_path):
    (tmp_path / FILE).mkdir()
    with pytest.raises(BundleError):
        ServingSet(tmp_path).read()
    (tmp_path / FILE).rmdir()
    policies = [ENTRY, ENTRY | {"bundle": "b", "action": "log"}]
    (tmp_path / FILE).write_text(json.dumps({"schema_version": 1, "policies": policies}))
    assert [entry.bundle for entry in ServingSet(tmp_path).read()] == ["a", "b"]
