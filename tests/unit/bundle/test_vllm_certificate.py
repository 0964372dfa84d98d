"""A file of the hub's cache is a link; what is put into its place is the file."""

import os

import pytest

from alora.bundle.vllm_certificate import _same_file


@pytest.mark.parametrize("has_links", [True, False])
def test_of_a_link_the_file_itself_is_taken(has_links, tmp_path, monkeypatch):
    (tmp_path / "blob").write_text("weights")
    (tmp_path / "folder").mkdir()
    link, staged = tmp_path / "folder/adapter", tmp_path / "staged"
    link.symlink_to("../blob")

    def refuses(*_):
        raise OSError

    if not has_links:
        monkeypatch.setattr(os, "link", refuses)
    _same_file(link, staged)
    assert not staged.is_symlink()
    assert staged.read_text() == "weights"
    assert (staged.stat().st_ino == (tmp_path / "blob").stat().st_ino) == has_links
