"""A received folder leads nowhere: no link in it is followed, no pipe waited for, whatever the verb."""

import shutil

import pytest

from alora.bundle.artifact import find_artifact
from alora.bundle.battery import write_battery
from alora.bundle.read import load_bundle
from alora.cli import main
from alora.errors import BundleError
from alora.received import file_record
from alora.training.layout import link_only
from tests.integration.bad_input.conftest import tree
from tests.integration.bundle.test_read import resign


def test_a_card_that_leads_to_a_secret_is_not_exported(folder, tmp_path, capsys):
    """Signed again, so that nothing but the link tells."""
    secret = tmp_path / "id_rsa"
    secret.write_text("PRIVATE KEY")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(secret)
    record = file_record(secret)
    resign(folder, lambda m: m["files"].update({"README.md": {"size": record.size, "sha256": record.sha256}}))
    before = tree(tmp_path)
    for more in (f"output={tmp_path / 'copy'}", "export.push_to=me/mine"):
        assert main(["export", f"artifact={folder}", more]) == 2
        assert "README.md is a link" in capsys.readouterr().err
    assert tree(tmp_path) == before


@pytest.fixture
def run(folder, tmp_path):
    """A run of one policy, with the links to its bundle and adapter."""
    run = tmp_path / "run"
    shutil.copytree(folder, run / "battery/advice")
    write_battery(run / "battery", [load_bundle(run / "battery/advice")])
    shutil.copytree(folder, run / "policies/advice/adapter")
    (run / "policies/advice/adapter/alora.json").unlink()
    for file in ("run.yaml", "inputs.json", "policies/advice/identity.json", "policies/advice/evaluation.json",
                 "policies/advice/report.html"):  # fmt: skip
        (run / file).write_text("{}")
    link_only(run, "advice")
    return run


PARTS = ("", "battery", "battery/advice", "policies/advice/adapter", "bundle", "adapter")


@pytest.mark.parametrize(
    "name",
    ["battery", "battery/advice", "battery/advice/alora.json", "policies/advice", "policies/advice/adapter", "run.yaml",
     "policies/advice/identity.json", "inputs.json"],
)  # fmt: skip
def test_no_part_of_a_run_is_a_link(name, run, tmp_path, monkeypatch):
    """A bundle or adapter is read with what its run says, however it was named."""
    (run / "tracking").mkdir()
    (run / "tracking" / "latest").symlink_to("elsewhere")  # as W&B makes them; nothing reads it
    artifacts = [run / part for part in PARTS]
    for artifact in artifacts:
        find_artifact(artifact)
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    for artifact in artifacts:
        with pytest.raises(BundleError, match=f"{name} is a link"):
            find_artifact(artifact)
    monkeypatch.chdir(run / "policies/advice/adapter")
    if name.startswith("battery"):
        with pytest.raises(BundleError, match=f"{name} is a link"):
            find_artifact(".")
