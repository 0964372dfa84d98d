"""A folder of verdicts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from alora.batch.log_rows import survey
from alora.batch.stored_verdicts import tables
from alora.batch.verdict_folder import RefusedRow, ScoredRow, VerdictFolder
from alora.commands.score import _is_job
from alora.errors import ConfigError, DataError, RunError
from tests.unit.batch.cases import POLICIES, TIMED, log, scored


@pytest.fixture
def killed(tmp_path) -> Callable[[], VerdictFolder]:
    """A job of three shards that was killed when all were there but one; called, it goes on."""
    asked = {policy: {"adapter": "0a" * 32, "threshold": 0.5, "histogram": (1,) * 10, "labels": ["violation", "ok"]}
             for policy in POLICIES}  # fmt: skip
    job = {"rows": 6, "rows_digest": "", "policies": asked, "shard_rows": 2}

    def again() -> VerdictFolder:
        return VerdictFolder(tmp_path / "v.parquet", job)

    with again() as folder:
        for shard in range(2):
            folder.write(shard, two_rows(shard))
    return again


def two_rows(shard: int) -> list[ScoredRow | RefusedRow]:
    row = scored(2 * shard, {"id": "c", "at": None}, lambda *_: 0.9, 0.5)
    return [row, RefusedRow(2 * shard + 1, f"log.jsonl:{2 * shard + 2}", ["empty"])]


def finish(folder: VerdictFolder) -> Mapping[str, Any]:
    with folder:
        for shard in folder.missing():
            folder.write(shard, two_rows(shard))
        return folder.finish()


def test_a_killed_job_goes_on(killed, tmp_path):
    assert finish(killed()) == {"scored": 3, "rejected": 3, "flagged": {"advice": 3, "refunds": 3}}
    assert {path.name for path in tmp_path.iterdir()} == {"v.parquet", "v.rejected.jsonl"}
    assert [json.loads(line)["row"] for line in (tmp_path / "v.rejected.jsonl").read_text().splitlines()] == [1, 3, 5]


@pytest.mark.parametrize("name", ["V.PARQUET", "v.pq", "run.2026", "verdicts-v1.2"])
def test_the_ending_says_whether_it_is_a_file(name, tmp_path):
    job = {"rows": 2, "rows_digest": "", "policies": {"advice": {"adapter": "0a", "threshold": 0.5}}, "shard_rows": 2}
    assert _is_job(tmp_path / name)
    with VerdictFolder(tmp_path / name, job) as folder:
        folder.write(0, [RefusedRow(row, f"log.jsonl:{row + 1}", []) for row in range(2)])
        folder.finish()
    assert (tmp_path / name).is_file() == name.lower().endswith(("parquet", "pq"))


def test_a_log_of_other_times_is_another_log(tmp_path):
    source = log(tmp_path, 3)
    before = survey(str(source), TIMED).digest
    source.write_text(source.read_text().replace("T23:30", "T22:30", 1))
    assert survey(str(source), TIMED).digest != before


def test_other_files_are_no_place_for_verdicts():
    assert not _is_job(Path("v.jsonl"))
    for name in ("v.csv", "v.jsonl.gz", "v.TXT"):
        with pytest.raises(ConfigError, match=r"NAME.parquet, to a folder or to NAME.jsonl"):
            _is_job(Path(name))


def test_a_time_column_that_no_row_has_is_refused_before_anything_is_scored(tmp_path):
    source = tmp_path / "log.jsonl"
    source.write_text('{"messages": [{"role": "user", "content": "x"}]}\n[]\n')
    with pytest.raises(DataError, match=r"no row has a 'at', which data.columns.time names"):
        survey(str(source), TIMED)
    source.write_text("1\n")
    assert survey(str(source), TIMED).count == 1


def empty(file: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).slice(0, 0), file)


def of_other_rows(file: Path) -> None:
    file.write_bytes(file.with_name("verdicts-00000.parquet").read_bytes())


def of_a_changed_byte(file: Path) -> None:
    """In a page of the labels, of which nothing is counted."""
    groups = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    columns = [groups.column(at) for at in range(groups.num_columns)]
    (one,) = [column for column in columns if column.path_in_schema == "refunds_label"]
    changed = bytearray(file.read_bytes())
    changed[(one.dictionary_page_offset or one.data_page_offset) + one.total_compressed_size - 1] ^= 1
    file.write_bytes(changed)


def content(given: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(given)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*(("verdicts-00001.parquet", damage) for damage in
       (empty, of_other_rows, of_a_changed_byte, content(b"junk"))),
     *(("rejected-00001.jsonl", damage) for damage in
       (content(b""), Path.unlink))],
)  # fmt: skip
def test_a_shard_that_is_damaged_is_refused_and_scored_again_once_removed(name, damage, killed, tmp_path):
    damage(tmp_path / "v.parquet.parts" / name)
    with killed() as folder:
        folder.write(2, two_rows(2))
        with pytest.raises(RunError, match=r"-00001\.(parquet|jsonl)"):
            folder.finish()
    (tmp_path / "v.parquet.parts/verdicts-00001.parquet").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet.parts"]
    assert finish(killed()) == {"scored": 3, "rejected": 3, "flagged": {"advice": 3, "refunds": 3}}


@pytest.mark.parametrize("damage", [Path.unlink, empty, content(b"junk")])
def test_a_complete_folder_s_shard_that_is_lost_is_scored_again(damage, tmp_path):
    asked = {policy: {"adapter": "0a" * 32, "threshold": 0.5} for policy in POLICIES}
    job = {"rows": 6, "rows_digest": "", "policies": asked, "shard_rows": 2}
    done = finish(VerdictFolder(tmp_path / "v", job))
    before = {path.name: path.read_bytes() for path in (tmp_path / "v").iterdir()}
    assert VerdictFolder(tmp_path / "v", job).read_result() == done
    damage(tmp_path / "v/verdicts-00001.parquet")
    with pytest.raises(RunError, match="score"):
        list(tables(tmp_path / "v", ["row"]))
    (tmp_path / "v/verdicts-00001.parquet").unlink(missing_ok=True)
    again = VerdictFolder(tmp_path / "v", job)
    assert again.read_result() is None
    assert finish(again) == done
    assert {path.name: path.read_bytes() for path in (tmp_path / "v").iterdir()} == before


@pytest.mark.parametrize("left", [1, 4, 8])
def test_a_job_that_was_killed_while_it_tidied_up_is_complete(left, killed, tmp_path, monkeypatch):
    removed = Path.unlink

    def dying(path, missing_ok=False):
        if (tmp_path / "v.parquet").exists() and len([*path.parent.iterdir()]) == left:
            raise KeyboardInterrupt
        removed(path, missing_ok)

    job = killed()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            finish(job)
    assert killed().read_result() == {"scored": 3, "rejected": 3, "flagged": {"advice": 3, "refunds": 3}}
    assert {path.name for path in tmp_path.iterdir()} == {"v.parquet", "v.rejected.jsonl"}
