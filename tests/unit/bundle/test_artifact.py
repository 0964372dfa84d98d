"""What stands for a list of policies, and what is a bundle."""

import json

from alora.bundle.artifact import find_artifact


def test_a_battery_of_one_bundle_is_still_a_list(tmp_path):
    (tmp_path / "battery.json").write_text(json.dumps({"schema_version": 1, "bundles": ["advice"]}))
    found = find_artifact(tmp_path)
    assert (found.bundles, found.several) == ((tmp_path / "advice",), True)


def test_a_folder_of_a_bundles_name_without_a_manifest_is_none(tmp_path):
    (tmp_path / "run.yaml").write_text("name: run\n")
    (tmp_path / "bundle").mkdir()
    assert find_artifact(tmp_path).bundles == ()
