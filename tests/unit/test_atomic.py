"""Whole or not there."""

import errno
import json
import os
import re
import stat

import pytest
import torch

import alora.atomic
from alora.adapter.folder import AdapterSpec, AdapterWeights, save_adapter, save_tensors
from alora.atomic import part, remove_own, replace_folder, sweep, whole, write_json, write_text
from tests.integration.bad_input.conftest import tree


def test_writes_into_folders_that_are_not_there_yet(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"text": "größer", "lone": "\ud800"})
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == {"text": "größer", "lone": "\ud800"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "new" * 10_000 + "\ud800")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError, match="No space") as full, whole(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")  # as Python's and Arrow's writes do
    assert full.value.filename == str(tmp_path / "a")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_as_readable_by_others_as_the_umask_says(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "text", "x")
        save_tensors({"a": torch.zeros(2)}, tmp_path / "tensors")
        save_tensors({"a": torch.zeros(2)}, tmp_path / "tensors")  # over its own
        spec = AdapterSpec(1, 2.0, ("q_proj",), None)
        weights = AdapterWeights(spec, {"q_proj": (torch.zeros(1, 2), torch.zeros(2, 1))})
        save_adapter(weights, tmp_path / "adapter", "toy")
    finally:
        os.umask(before)
    found = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert found.pop("adapter") == 0o777 & ~umask
    assert len(found) == 4
    assert set(found.values()) == {0o666 & ~umask}


def filled(folder, text):
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path, monkeypatch, in_one_step):
    if not in_one_step:
        monkeypatch.setattr(alora.atomic, "_RENAME_EXCHANGE", 2**10)  # EINVAL, as on a file system without it
    folder, beside = filled(tmp_path / "place", "old"), filled(tmp_path / "beside", "new")
    replace_folder(beside, folder)
    assert ((folder / "file").read_text(), (beside / "file").read_text()) == ("new", "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "place"]


@pytest.mark.parametrize("name", ["notes.txt", ".git", "card"])
def test_a_folder_with_something_of_the_users_is_not_replaced(name, tmp_path):
    folder, beside = filled(tmp_path / "place", "old"), filled(tmp_path / "beside", "new")
    filled(folder / name, "mine") if name == ".git" else (folder / name).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(OSError, match=f"holds '{name}', which alora did not write"):
        replace_folder(beside, folder, ["file"])
    assert tree(tmp_path) == before
    if name == "card":
        replace_folder(beside, folder, ["card"])  # lost by name alone
    else:
        (folder / name).rename(tmp_path / "away")
        replace_folder(beside, folder, ["file"])
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_sweep_takes_what_a_killed_process_was_writing_and_nothing_else(tmp_path):
    for name in (".git", ".config", ".advice.x8k2_ab1", ".a.0123456.alora-part", "x.01234567.alora-part"):
        filled(tmp_path / name, "mine")
    (tmp_path / ".env").write_text("mine")
    before = tree(tmp_path)
    part(tmp_path / "advice").mkdir()
    filled(part(tmp_path / "advice"), "ours")
    part(tmp_path / "alora.json").write_text("half")
    part(tmp_path / "link").symlink_to(tmp_path / ".git")
    assert len(tree(tmp_path)) == len(before) + 5
    sweep(tmp_path)
    assert tree(tmp_path) == before
    sweep(tmp_path / "missing")


def test_what_is_removed_is_alora_s_own_file_by_file(tmp_path):
    own = re.compile(r"a/(one|two/three)\.json")
    for name in ("a/one.json", "a/two/three.json", "a/two/four.json", "a/notes.md", "b/one.json"):
        write_text(tmp_path / name, "x")
    (tmp_path / "a/link").symlink_to(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/one.json").symlink_to(tmp_path / "a/one.json")
    remove_own(tmp_path / "missing", own)
    remove_own(tmp_path, own)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir())
    assert left == ["a/notes.md", "a/two/four.json", "b/one.json", "c/one.json"]
    assert (tmp_path / "a/link").is_symlink()
    remove_own(tmp_path / "a/link", re.compile(".*"))  # the folder itself is a link
    assert (tmp_path / "b/one.json").exists()
