"""Parquet: read as lines are."""

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from alora.data import sources
from alora.data.findings import Findings
from alora.errors import DataError
from tests.unit.data.rows import jsonl, read, row


def test_parquet_reads_as_jsonl_does(tmp_path):
    rows = [row("a", id="x"), row("b", "violation", id="y")]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = read(str(path))
    assert [item.conversation for item in found] == [i.conversation for i in read(jsonl(tmp_path, *rows))]
    assert found[1].where == "rows.parquet:2"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"]}), path)
    with pytest.raises(DataError, match=r"rows.parquet:1: no column 'messages'"):
        read(str(path))


def test_a_table_gives_no_call_the_arguments_of_others(tmp_path):
    """Parquet and the hub's data sets give each object the keys of all."""

    def calling(name, arguments):
        call = {"function": {"name": name, "arguments": arguments}}
        return row() | {"messages": [*row()["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]}

    rows = [calling("weather", {"city": "X"}), calling("refund", {"order": 7, "why": [None]})]
    as_lines = [item.conversation.messages for item in read(jsonl(tmp_path, *rows))]
    assert as_lines[0][1].calls[0].arguments == '{"city": "X"}'
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert [item.conversation.messages for item in read(str(tmp_path / "rows.parquet"))] == as_lines
    datasets.Dataset(table).to_parquet(tmp_path / "of_datasets.parquet")
    assert [item.conversation.messages for item in read(str(tmp_path / "of_datasets.parquet"))] == as_lines


@pytest.mark.parametrize("kept", [None, b"{", b'{"info": 3}'])
def test_class_numbers_that_datasets_wrote_have_their_names(kept, tmp_path):
    """And what stands where datasets writes the names may be anything."""
    names = datasets.ClassLabel(names=["ok", "violation"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, None]}, features)
    data.to_parquet(tmp_path / "rows.parquet")
    if kept:
        table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
        pyarrow.parquet.write_table(table.replace_schema_metadata({b"huggingface": kept}), tmp_path / "rows.parquet")
    rows = sources.read_rows(str(tmp_path / "rows.parquet"), Findings())
    assert [row.value["label"] for row in rows] == ([0, 1, None] if kept else ["ok", "violation", None])
