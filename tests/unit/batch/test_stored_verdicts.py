"""Verdicts that come from elsewhere: whatever is in them, one error names the file."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from alora.batch.sample import sample
from alora.batch.verdict_report import Summary
from alora.errors import RunError
from tests.unit.batch.cases import log, verdicts

ROWS = 40


@pytest.fixture
def place(tmp_path):
    return verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS))


def forge(place, manifest: object = None, columns: dict | None = None) -> None:
    """Change the manifest (its bytes, or an edit of it), and columns."""
    table = pyarrow.parquet.read_table(place)
    raw = table.schema.metadata[b"alora"]
    if isinstance(manifest, bytes):
        raw = manifest
    elif manifest is not None:
        found = json.loads(raw)
        manifest(found)  # type: ignore[operator]
        raw = json.dumps(found).encode()
    for name, values in (columns or {}).items():
        number = table.schema.get_field_index(name)
        table = table.remove_column(number)
        table = table if values is None else table.add_column(number, name, values)
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"alora": raw}), place)


def job(**own: object):
    return lambda manifest: manifest["job"].update(own)


def policy(**own: object):
    return lambda manifest: manifest["job"]["policies"]["advice"].update(own)


@pytest.mark.parametrize(
    "manifest",
    [policy(threshold="x"), policy(threshold=None), policy(threshold=float("nan")),
     policy(adapter=5), policy(histogram="abc"), policy(histogram=["a"] * 10), policy(histogram=[1000]),
     job(policies=["advice"]), job(policies={}), job(policies=None),
     job(policies={"advice": None}), job(policies={"advice": {}}), job(rows="<script>"), job(rows=-1), job(time={}),
     job(reading={"columns": {"messages": 5}, "role_map": {}, "skip_media": False}), job(reading=[]),
     job(rows_digest=None), job(shard_rows=0), lambda manifest: manifest.update(done=[1]),
     lambda manifest: manifest.update(done="x"), lambda manifest: manifest.update(job=[1]),
     b'{"job": NaN}', b"", b"\xff", b"[1]"],
)  # fmt: skip
def test_a_manifest_of_other_types_is_refused(manifest, place):
    forge(place, manifest)
    for reader in (Summary, sample):
        with pytest.raises(RunError, match=f"^{place} holds no verdicts"):
            reader(place, 5)


@pytest.mark.parametrize(
    "columns",
    [{"advice_probability": pyarrow.array(["a"] * ROWS)}, {"advice_probability": None},
     {"row": pyarrow.array([0] * ROWS)}, {"row": pyarrow.array([-1, *range(1, ROWS)])}, {"row": None},
     {"row": pyarrow.array([*range(ROWS - 1), ROWS])}, {"time": pyarrow.array([5] * ROWS)}],
)  # fmt: skip
def test_columns_of_something_else_are_refused(columns, place):
    forge(place, columns=columns)
    with pytest.raises(RunError, match=f"^{place} holds no verdicts that can be used: "):
        Summary(place, 5)


def test_a_probability_at_the_threshold_is_flagged(tmp_path):
    place = verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS), of=lambda number, policy: 0.5 if number % 2 else 0.4)
    assert Summary(place, 5).flagged_P.tolist() == [ROWS // 2, ROWS // 2]
