"""The cache costs time when it cannot be kept, and says what to set when it must be."""

import os

from alora.base.cache import remember_of


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
