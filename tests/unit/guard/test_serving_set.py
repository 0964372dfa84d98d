"""Where a policy's folder may lie: below the root, no link on the way, whatever a request names."""

import pytest

from alora.errors import BundleError
from alora.guard.serving_set import ServingSet


@pytest.fixture
def root(tmp_path):
    for folder in ("outside/bundle", "root/bundle", "root/group/bundle"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/group/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/file").touch()
    return tmp_path / "root"


@pytest.mark.parametrize("name", ["bundle", "group/bundle", "./bundle"])
def test_a_folder_below_the_root(root, name):
    assert ServingSet(root).folder(name) == root / name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../outside/bundle", "group/../../outside/bundle", "/etc", "bundle\0", "nowhere", "file",
     "link/bundle", "group/link/bundle", "group/link", "x" * 300],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(root, name):
    with pytest.raises(BundleError, match=r"^bundle is "):
        ServingSet(root).folder(name)
