"""Parquet: read as lines are, and refused by its size before it is unpacked."""

import datetime
import decimal
import resource

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from alora.config.schema import DataSettings
from alora.data import parquet, sources
from alora.data.labelled import read_labelled
from alora.errors import DataError
from alora.findings import Findings
from alora.policy import Policy
from tests.unit.data.rows import jsonl, read, row


@pytest.mark.parametrize(
    "column",
    [pyarrow.array([b"\xff"]).view(pyarrow.string()), pyarrow.array([2**31 - 1], pyarrow.date32())],
    ids=["not UTF-8", "a day that Python has not"],
)
def test_parquet_that_python_cannot_hold(column, tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"label": column}), path)
    with pytest.raises(DataError, match=r"rows.parquet: not a Parquet file that can be read"):
        read(str(path))


@pytest.mark.parametrize("value", [datetime.date(2020, 1, 1), decimal.Decimal("1.5"), b"\xff"])
@pytest.mark.parametrize("place", ["arguments", "content"])
def test_parquet_values_that_json_has_no_form_for(place, value, tmp_path):
    call = {"function": {"name": "book", "arguments": {"when": value}}}
    message = {
        "arguments": {"role": "assistant", "content": None, "tool_calls": [call]},
        "content": {"role": "tool", "content": {"when": value}},
    }[place]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": [message], "label": "ok"}]), path)
    with pytest.raises(DataError, match=r"rows.parquet:1: message 1: holds dict .* which JSON has no form for"):
        read_labelled(str(path), DataSettings(), Policy("p", "P", "Rule."))


def test_parquet_with_maps(tmp_path):
    tags = pyarrow.array([[("a", "x")], [], None], pyarrow.map_(pyarrow.string(), pyarrow.string()))
    deep = pyarrow.array(
        [[[("a", [1, 2])]], [], None], pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.list_(pyarrow.int64())))
    )
    table = pyarrow.table({"prompt": ["Hi", "Ho", "Ha"], "label": ["ok"] * 3, "tags": tags, "deep": deep})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    assert [item.conversation.messages[0].content for item in read(str(path))] == ["Hi", "Ho", "Ha"]


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


@pytest.mark.parametrize("kept", [None, b"{", b"[]", b'{"info": 3}', b"\xff"])
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


def test_class_names_of_the_file_and_of_the_card_stand_next_to_each_other(tmp_path):
    names = datasets.ClassLabel(names=["ok", "violation"])
    features = datasets.Features({"a": names, "b": datasets.Value("int64"), "c": datasets.Value("int64")})
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_dict({"a": [1], "b": [1], "c": [1]}, features).to_parquet(path)
    (row,) = parquet.read_parquet(path, "rows", {"b": ["no", "yes"]})
    assert row.value == {"a": "violation", "b": "yes", "c": 1}


def test_parquet_that_unpacks_to_gigabytes_is_refused_by_its_size(tmp_path, monkeypatch):
    """A text that a dictionary holds once, in rows that take a few bytes each, also inside messages."""
    path = tmp_path / "rows.parquet"
    count = 10**4
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), ["y" * 10**5])
    inner = pyarrow.StructArray.from_arrays([texts], ["content"])
    for column in (texts, pyarrow.ListArray.from_arrays(pyarrow.array(range(count + 1), pyarrow.int32()), inner)):
        table = pyarrow.table({"messages": column})
        pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 20_000
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        monkeypatch.setattr(parquet, "LARGEST", 10**8)
        with pytest.raises(DataError, match=r"^\S+rows.parquet holds 0\.\d GiB and more when it is unpacked"):
            read(str(path))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000, "kilobytes"


def test_parquet_of_more_rows_than_are_read_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    monkeypatch.setattr(parquet, "MOST_ROWS", 1000)
    pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.nulls(10**6, pyarrow.string())}), path)
    with pytest.raises(DataError, match=r"rows.parquet holds 1000000 rows in \d+ bytes: no row takes less than one"):
        read(str(path))


def test_a_parquet_row_of_millions_of_values_is_refused_before_they_are_pythons(tmp_path):
    """Each message takes two bits in the file, and half a kilobyte as Python's."""
    path = tmp_path / "rows.parquet"
    count = 10**7
    parts = [pyarrow.nulls(count, pyarrow.string()), pyarrow.nulls(count, pyarrow.string())]
    messages = pyarrow.StructArray.from_arrays(parts, ["role", "content"])
    column = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), messages)
    pyarrow.parquet.write_table(pyarrow.table({"messages": column}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"rows.parquet holds \d+ values in 1 rows when it is unpacked"):
        read(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 900_000, "kilobytes"


def test_parquet_with_two_columns_of_one_name_is_refused_by_the_name(tmp_path):
    path = tmp_path / "rows.parquet"
    columns = [pyarrow.array(["ok"]), pyarrow.array(["violation"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["label", "label"]), path)
    with pytest.raises(DataError, match=r"rows.parquet: the column 'label' is there twice"):
        read(str(path))


def test_parquet_gives_every_kind_of_value_as_it_is(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [
        {"messages": [{"role": "user", "content": "a"}], "label": "ok", "n": 1, "x": 0.5, "big": b"b", "t": True},
        {"messages": None, "label": None, "n": None, "x": None, "big": None, "t": None},
        {
            "messages": [{"role": "user", "content": "é" * 9}] * 3,
            "label": "ok",
            "n": 2,
            "x": 2.5,
            "big": b"",
            "t": False,
        },
    ] * 700
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [row.value for row in sources.read_rows(str(path), Findings())] == rows
