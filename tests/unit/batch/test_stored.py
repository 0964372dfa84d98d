"""Verdicts that come from elsewhere: whatever is in them, one error names the file."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from alora.batch.sample import sample
from alora.batch.stored import tables
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


def done(**own: object):
    return lambda manifest: manifest["done"].update(own)


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
    [{"advice_probability": pyarrow.array([value] * ROWS, pyarrow.float64())}
     for value in (float("nan"), -5.0, 1e300, float("inf"), None)]
    + [{"advice_probability": pyarrow.array(["a"] * ROWS)}, {"advice_probability": None},
       {"advice_flagged": pyarrow.nulls(ROWS, pyarrow.bool_())}, {"advice_flagged": pyarrow.array([1] * ROWS)},
       {"row": pyarrow.array([0] * ROWS)}, {"row": pyarrow.array([-1, *range(1, ROWS)])}, {"row": None},
       {"row": pyarrow.array([*range(ROWS - 1), ROWS])}, {"id": pyarrow.nulls(ROWS, pyarrow.string())},
       {"id": pyarrow.array([b"\xff\xfe"] * ROWS).view(pyarrow.string())}, {"id": pyarrow.array([[1]] * ROWS)},
       {"time": pyarrow.array([5] * ROWS)}],
)  # fmt: skip
def test_columns_of_something_else_are_refused(columns, place):
    forge(place, columns=columns)
    with pytest.raises(RunError, match=f"^{place} holds no verdicts that can be used: "):
        Summary(place, 5)


@pytest.mark.parametrize("counts", [{"scored": -1}, {"rejected": -1}, {"rejected": 1}, {"flagged": {}},
                                    {"flagged": {"advice": -1, "refunds": 0}}])  # fmt: skip
def test_counts_that_are_not_those_of_the_verdicts_are_refused(counts, place):
    Summary(place, 5)
    forge(place, done(**counts))
    with pytest.raises(RunError, match=r"its counts are not those of its verdicts|40 of -1 verdicts"):
        Summary(place, 5)


def test_a_label_that_contradicts_its_flag_is_refused(tmp_path):
    place = verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS), labels=["violation", "ok"])
    labels = pyarrow.parquet.read_table(place)["advice_label"].to_pylist()
    for reader in (Summary, sample):
        reader(place, 5)
    turned = [{"violation": "ok", "ok": "violation"}[label] for label in labels]
    forge(place, columns={"advice_label": pyarrow.array(turned)})
    for reader in (Summary, sample):
        with pytest.raises(RunError, match="advice_label does not follow from advice_flagged"):
            reader(place, 5)


def test_a_probability_at_the_threshold_is_flagged(tmp_path):
    place = verdicts(tmp_path / "v.parquet", log(tmp_path, ROWS), of=lambda number, policy: 0.5 if number % 2 else 0.4)
    assert Summary(place, 5).flagged_P.tolist() == [ROWS // 2, ROWS // 2]


def test_a_column_that_is_there_twice_is_refused(place):
    table = pyarrow.parquet.read_table(place)
    pyarrow.parquet.write_table(table.append_column("row", table["row"]), place)
    with pytest.raises(RunError, match="columns"):
        Summary(place, 1)


@pytest.mark.parametrize("name", ["manifest.json", "verdicts-00001.parquet"])
def test_a_folder_leads_nowhere_else(name, tmp_path):
    place = verdicts(tmp_path / "v", log(tmp_path, ROWS))
    moved = (place / name).rename(tmp_path / "moved")
    (place / name).symlink_to(moved)
    with pytest.raises(RunError, match=f"{name} is "):
        list(tables(place, ["row"]))
