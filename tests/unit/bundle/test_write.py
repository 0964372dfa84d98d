"""What may be replaced by a bundle."""

import pytest

from alora.bundle.write import require_replaceable
from alora.errors import BundleError


@pytest.mark.parametrize(
    "content",
    [
        '{"schema_version": 1}',
        '{"schema_version": 1, "adapter_digest": ""}',
        '["schema_version", "adapter_digest"]',
        "{",
    ],
    ids=["only a version", "a version and a digest", "a list", "cut off"],
)
def test_a_file_of_the_manifests_name_is_no_bundle_yet(content, tmp_path):
    (tmp_path / "alora.json").write_text(content)
    with pytest.raises(BundleError, match="exists and is not a bundle"):
        require_replaceable(tmp_path, "advice")
