"""A folder of verdicts."""

import json

from alora.logs.stored import tables
from alora.logs.verdicts import VerdictFolder
from tests.unit.logs.cases import POLICIES, scored, verdicts


def test_what_a_writer_that_died_left_is_gone_when_the_job_is_done(tmp_path):
    """On a cluster the others go on, so no new start sweeps it away."""
    asked = {policy: {"adapter": "0a" * 32, "threshold": 0.5} for policy in POLICIES}
    job = {"rows": 1, "rows_digest": "", "policies": asked, "shard_rows": 4}
    with VerdictFolder(tmp_path / "v", job) as folder:
        (tmp_path / "v/.verdicts-00000.parquet.0123abcd.alora-part").write_text("half")
        folder.write(0, [scored(0, {"id": "c0", "at": None}, lambda *_: 0.2, 0.5)])
        assert folder.finish() == {"scored": 1, "rejected": 0, "flagged": {"advice": 0, "refunds": 0}}
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"manifest.json", "verdicts-00000.parquet"}


def test_a_time_that_no_text_file_can_hold_costs_no_other_row(tmp_path):
    source = tmp_path / "log.jsonl"
    rows = [
        {"id": f"c{n}", "at": at, "messages": [{"role": "user", "content": "x"}]}
        for n, at in enumerate(("\ud800", "2026-01-01"))
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = verdicts(tmp_path / "v", source)
    assert [table["time"].to_pylist() for table in tables(place, ["time"])] == [["\\ud800", "2026-01-01"]]
