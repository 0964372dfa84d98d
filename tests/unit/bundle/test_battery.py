"""Which bundles a battery may list."""

import pytest

from alora.bundle.battery import require_all_listed, write_battery
from alora.errors import BundleError
from tests.unit.bundle.cases import bundle


def test_a_list_is_not_replaced_by_one_that_lacks_a_bundle_of_it(tmp_path):
    require_all_listed(tmp_path, ["advice"])
    write_battery(tmp_path, [bundle(tmp_path / name, name) for name in ("advice", "refunds", "threats")])
    require_all_listed(tmp_path, ["threats", "refunds", "advice", "more"])
    with pytest.raises(BundleError, match=r"battery\.json also lists refunds, threats, and would not any more; give"):
        require_all_listed(tmp_path, ["advice"])
