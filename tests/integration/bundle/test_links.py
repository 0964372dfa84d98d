"""A received folder leads nowhere: no link in it is followed, no pipe waited for, whatever the verb."""

import os
import shutil
from pathlib import Path

import pytest

from alora.adapter.folder import CONFIG_FILE, WEIGHTS_FILE, load_adapter
from alora.bundle.artifact import find_artifact
from alora.bundle.battery import load_battery, write_battery
from alora.bundle.manifest import BUNDLE_FILES, file_record
from alora.bundle.read import load_bundle
from alora.bundle.write import copy_bundle
from alora.cli import main
from alora.errors import AdapterError, BundleError
from tests.integration.bad_input.conftest import tree
from tests.integration.bundle.test_read import resign


def lead_out(file: Path, elsewhere: Path) -> None:
    """The same bytes, behind a link: every digest still fits."""
    elsewhere.mkdir()
    file.rename(elsewhere / file.name)
    file.symlink_to(elsewhere / file.name)


def pipe(file: Path, _: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [lead_out, pipe])
@pytest.mark.parametrize("name", BUNDLE_FILES)
def test_no_file_of_a_bundle_is_a_link_or_a_pipe(name, change, folder, tmp_path):
    (tmp_path / "named").symlink_to(folder)
    assert load_bundle(tmp_path / "named").policy.id == "advice"  # the user's own link is followed
    change(folder / name, tmp_path / "elsewhere")
    before = tree(tmp_path)
    for act in (load_bundle, find_artifact, lambda place: copy_bundle(place, tmp_path / "copy")):
        with pytest.raises(BundleError, match=f"{name} is (a link|no file)"):
            act(folder)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("change", [lead_out, pipe])
@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_no_file_of_an_adapter_is_one(name, change, folder, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        shutil.copy(folder / file, adapter / file)
    load_adapter(adapter)
    change(adapter / name, tmp_path / "elsewhere")
    with pytest.raises(AdapterError, match=f"{name} is (a link|no file)"):
        load_adapter(adapter)


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


def test_folders_inside_are_no_links_either(folder, tmp_path):
    battery = tmp_path / "battery"
    battery.mkdir()
    shutil.copytree(folder, battery / "advice")
    write_battery(battery, [load_bundle(battery / "advice")])
    assert [bundle.policy.id for bundle in load_battery(battery)] == ["advice"]
    shutil.rmtree(battery / "advice")
    (battery / "advice").symlink_to(folder)
    for act in (load_battery, find_artifact):
        with pytest.raises(BundleError, match="battery/advice is a link"):
            act(battery)


@pytest.mark.parametrize("name", ["bundle", "adapter", "run.yaml", "identity.json", "evaluation.json"])
def test_nor_what_a_run_keeps(name, folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(folder, run / "bundle")
    shutil.copytree(folder, run / "adapter")
    for file in ("run.yaml", "identity.json", "evaluation.json"):
        (run / file).write_text("{}")
    (run / "tracking").mkdir()
    (run / "tracking" / "latest").symlink_to("elsewhere")  # as W&B makes them; nothing reads it
    inner = run / "bundle" if name != "bundle" else run / "adapter"
    for artifact in (run, inner):
        find_artifact(artifact)
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(inner)
    for artifact in (run, inner, "."):  # a bundle or adapter is read with what its run says
        with pytest.raises(BundleError, match=f"{name} is a link"):
            find_artifact(artifact)
