"""Whole or not there."""

import json
import stat
import threading
import time

import pytest

import alora.atomic
from alora.atomic import json_text, replace_folder, write_json, write_text


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


def missing_while_replaced(tmp_path, times):
    """How often a reader found no file while a folder was replaced ``times`` times."""
    folder, beside = filled(tmp_path / "place", "old"), filled(tmp_path / "beside", "new")
    done, looks = threading.Event(), [0, 0]

    def look():
        while not done.is_set():
            looks[(folder / "file").exists()] += 1

    reader = threading.Thread(target=look)
    reader.start()
    while not looks[True]:  # the first look is at the folder as it was
        time.sleep(0)
    for _ in range(times):
        replace_folder(beside, folder)
        if looks[False]:
            break
    done.set()
    reader.join()
    assert looks[True]
    return looks[False]


def test_a_replaced_folder_is_there_at_every_moment(tmp_path):
    assert missing_while_replaced(tmp_path, 2000) == 0


def test_two_renames_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(alora.atomic, "_exchange", lambda first, second: False)
    assert missing_while_replaced(tmp_path, 20000) > 0


def test_a_folder_that_cannot_be_replaced_is_an_error(tmp_path):
    with pytest.raises(OSError, match="place"):
        replace_folder(tmp_path / "nothing", filled(tmp_path / "place", "old"))
    assert (tmp_path / "place" / "file").read_text() == "old"
