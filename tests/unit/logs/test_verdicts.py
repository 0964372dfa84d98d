"""A folder of verdicts."""

from alora.logs.verdicts import VerdictFolder
from tests.unit.logs.cases import scored


def test_what_a_writer_that_died_left_is_gone_when_the_job_is_done(tmp_path):
    """On a cluster the others go on, so no new start sweeps it away."""
    job = {"rows": 1, "policies": {"advice": {}, "refunds": {}}, "shard_rows": 4}
    with VerdictFolder(tmp_path / "v", job) as folder:
        (tmp_path / "v/.verdicts-00000.parquet.0123abcd.alora-part").write_text("half")
        folder.write(0, [scored(0, {"id": "c0", "at": None}, lambda *_: 0.2, 0.5)])
        assert folder.finish() == {"scored": 1, "rejected": 0, "flagged": {"advice": 0, "refunds": 0}}
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"manifest.json", "verdicts-00000.parquet"}
