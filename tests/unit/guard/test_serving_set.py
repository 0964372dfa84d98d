"""Where a policy's folder may lie: below the root, whatever a request names and wherever a link leads."""

import pytest

from alora.errors import BundleError
from alora.guard.serving_set import ServingSet


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
