"""The cache costs time when it cannot be kept, and says what to set when it must be."""

import os
import pwd

import pytest

from alora.base.cache import cache_root, remember_of
from alora.errors import BaseError


@pytest.fixture
def homeless(monkeypatch):
    def nobody(number):
        raise KeyError(number)

    for name in ("ALORA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)


def test_an_account_without_a_home_is_told_what_to_set(homeless):
    with pytest.raises(BaseError, match="set ALORA_CACHE"):
        cache_root()


def test_nothing_is_remembered_where_nothing_can_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "file"))
    assert remember_of([tmp_path / "file"], ".txt", lambda: "found") == "found"


def test_a_file_replaced_at_its_own_size_and_time_is_read_again(tmp_path, monkeypatch):
    """As ``cp -p`` or an archive does it."""
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    file, found = tmp_path / "weights", []
    for content in ("one", "two"):
        file.write_text(content)
        os.utime(file, (1, 1))
        found.append(remember_of([file], ".txt", file.read_text))
    assert found == ["one", "two"]
    assert remember_of([file], ".txt", lambda: "read again") == "two"
