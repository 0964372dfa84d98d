"""Whole or not there."""

import json
import stat
import threading

import pytest

from alora.atomic import json_text, write_json, write_text


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


def test_a_folder_in_the_place_is_an_error_and_nothing_stays_beside(tmp_path):
    (tmp_path / "place").mkdir()
    with pytest.raises(OSError, match="place"):
        write_text(tmp_path / "place", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_readable_by_others_as_any_file(tmp_path):
    write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    mode = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "plain")]
    assert mode[0] == mode[1]


def test_a_reader_never_sees_half_of_it(tmp_path):
    target = tmp_path / "file.txt"
    versions = [character * 200_000 for character in "abcd"]
    write_text(target, versions[0])
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(target.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        for version in versions:
            write_text(target, version)
    done.set()
    reader.join()
    assert seen <= set(versions)


def test_text_stays_readable():
    assert json_text({"a": "é"}) == '{\n  "a": "é"\n}'
