"""A copy of a bundle holds the bundle and nothing that lies beside it."""

from alora.bundle.write import copy_bundle


def test_what_lies_beside_the_files_of_a_bundle_stays_where_it_is(folder, tmp_path):
    own = sorted(file.name for file in folder.iterdir())
    (folder / "notes.txt").write_text("private")
    (folder / "events").mkdir()
    copy = copy_bundle(folder, tmp_path / "copy").folder
    assert sorted(file.name for file in copy.iterdir()) == own
    assert (folder / "notes.txt").read_text() == "private"
