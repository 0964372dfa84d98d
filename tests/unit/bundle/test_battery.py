"""Which bundles a battery may list."""

import json

import pytest

from alora.bundle.battery import battery_folders, require_all_listed, require_one_base, write_battery
from alora.errors import BundleError
from tests.unit.bundle.cases import bundle


@pytest.mark.parametrize("version", [0, -1, 0.5, None, "1"])
def test_a_list_of_another_version_is_refused(version, tmp_path):
    (tmp_path / "battery.json").write_text(json.dumps({"schema_version": version, "bundles": ["advice"]}))
    with pytest.raises(BundleError, match=r"schema_version is .*, and this alora reads 1"):
        battery_folders(tmp_path)


def test_two_of_one_policy_are_named_by_their_folders(tmp_path):
    bundles = [bundle(tmp_path / name, policy) for name, policy in (("a", "x"), ("b", "y"), ("c", "x"))]
    with pytest.raises(BundleError, match=r"2 bundles answer the policy 'x'") as caught:
        require_one_base(bundles)
    assert f"({tmp_path / 'a'}, {tmp_path / 'c'})" in str(caught.value)


def test_a_list_is_not_replaced_by_one_that_lacks_a_bundle_of_it(tmp_path):
    require_all_listed(tmp_path, ["advice"])
    write_battery(tmp_path, [bundle(tmp_path / name, name) for name in ("advice", "refunds", "threats")])
    require_all_listed(tmp_path, ["threats", "refunds", "advice", "more"])
    with pytest.raises(BundleError, match=r"battery\.json also lists refunds, threats, and would not any more; give"):
        require_all_listed(tmp_path, ["advice"])
