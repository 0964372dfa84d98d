"""Where rows come from: files that are something else, and data sets of the hub."""

import gzip
import json

import datasets
import pytest

from alora.config.schema import DataSettings
from alora.data import sources
from alora.data.findings import Findings
from alora.data.labelled import read_labelled
from alora.errors import DataError
from tests.unit.data.rows import POLICY, read, row


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", json.dumps(row()).encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        ("a.jsonl.gz", gzip.compress(json.dumps(row()).encode(), mtime=0)[:-4], "its gzip data is damaged"),
        ("a.jsonl", b'{\n  "label": "ok"\n}\n{\n  "label": "ok"\n}\n', "Extra data.*one object per line"),
        ("a.json", b'[{"label": "\xff"}]', "not UTF-8"),
        ("a.csv", b"text,label\nHi,\xff\n", "CSV UTF-8 in a spreadsheet"),
        ("a.csv", b"text,text\nHi,ok\n", "two columns are named 'text'"),
        ("a.csv", b'text,label\n"Hi,ok\n', r"a.csv:2: not CSV: unexpected end of data.*\[NOT_CSV\]"),
        ("a.csv", b"text,label\nHi, you,ok\n", r"a.csv:2: 3 cells and 2 columns.*\[CELLS\]"),
        ("a.csv", b"PK\x03\x04", "a spreadsheet or a zip file; save the table as CSV"),
        ("a.jsonl", b"PAR1\x15\x04", "name it .parquet"),
        ("a.txt", b"x", "ending '.txt' is not known; give .jsonl, .* .csv"),
    ],
)
def test_a_file_that_is_something_else(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read(str(path))


@pytest.mark.parametrize("name", ["set", "./set", "json", "pandas"])
def test_neither_a_folder_nor_a_formats_name_is_a_data_set_of_the_hub(name, tmp_path, monkeypatch):
    """datasets unpacks, unpickles and follows what it finds in one that was received."""
    monkeypatch.chdir(tmp_path)
    if name != "pandas":
        datasets.Dataset.from_dict({"text": ["a"], "label": ["ok"]}).save_to_disk(name)
    with pytest.raises(DataError, match=rf"{name} is none"):
        next(sources.read_rows(f"hub:{name}", Findings()))


def test_cells_of_a_tsv_that_swallow_rows_are_noted(tmp_path):
    (tmp_path / "train.tsv").write_text('text\tlabel\n"Hi\tok\nb\tviolation\nc"\tok\n')
    findings = Findings()
    assert len(read_labelled(str(tmp_path / "train.tsv"), DataSettings(), POLICY, findings)) == 1
    assert [note for note in findings.notes if "it may be several rows" in note]
