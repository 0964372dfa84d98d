"""Files as people have them: what they hold, row by row, and how much of a file is held."""

import gzip
import json
import math
from collections import Counter

import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data import files
from alora.data.labelled import read_labelled
from alora.data.messages import Message
from alora.errors import DataError
from tests.unit.data.rows import POLICY

TURNS = (Message("user", 'He said "hi",\nand left'), Message("assistant", "Oh; no"))


def talk(count=2):
    messages = [{"role": message.role, "content": message.content} for message in TURNS]
    return [{"id": f"r{number}", "messages": messages, "label": "ok"} for number in range(count)]


def quoted(*cells, separator=","):
    return separator.join('"' + cell.replace('"', '""') + '"' for cell in cells)


def table(separator, end="\n", header=("id", "prompt", "response", "label", "")):
    said = [message.content for message in TURNS]
    lines = [separator.join(header)]
    lines += [separator.join((f"r{number}", quoted(*said, separator=separator), "ok", "")) for number in range(2)]
    return end.join([*lines, "", separator * 4, ""]).encode()


FILES = {
    "comma.csv": table(","),
    "excel.csv": b"\xef\xbb\xbf" + table(";", "\r\n", ("ID", "Prompt", "Response", "Label", "")),
    "named_separator.csv": b"\xef\xbb\xbfsep=;\r\n" + table(";", "\r\n"),
    "tab.tsv": table("\t"),
    "named_otherwise.csv": table("\t"),
    "messages.csv": ("id,messages,label\n" + "\n".join(
        f"{row['id']},{quoted(json.dumps(row['messages']))},ok" for row in talk())).encode(),
    "array.json": json.dumps(talk(), indent=2).encode(),
    "one_line.json": b"\xef\xbb\xbf \n" + json.dumps(talk()).encode(),
    "array.jsonl": json.dumps(talk()).encode(),
    "lines.json": "\n".join(map(json.dumps, talk())).encode(),
    "lines.jsonl.gz": gzip.compress("\n".join(map(json.dumps, talk())).encode()),
    "two_parts.jsonl.gz": b"".join(gzip.compress(json.dumps(row).encode() + b"\n") for row in talk()),
    "array.json.gz": gzip.compress(json.dumps(talk()).encode()),
    "table.csv.gz": gzip.compress(table(",")),
    "packed.jsonl": gzip.compress("\n".join(map(json.dumps, talk())).encode()),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_same_rows_from_every_kind_of_file(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    rows = read_labelled(str(tmp_path / name), DataSettings(), POLICY)
    assert [row.conversation.id for row in rows] == ["r0", "r1"]
    assert [row.conversation.messages for row in rows] == [TURNS] * 2
    assert [row.labels for row in rows] == [{"p": "ok"}] * 2


@pytest.mark.parametrize("rest", [", broken", '][{"n": 3}]', ']{"n": 3}', "]]", "],"])
def test_an_array_that_is_not_whole_or_has_more_behind_it_is_refused(rest, tmp_path):
    """Two arrays in a row, as ``cat`` joins files, are not the first one alone."""
    (tmp_path / "a.json").write_text('[{"n": 1}, {"n": 2}' + rest)
    with pytest.raises(DataError, match=r"a\.json: not JSON"):
        list(files.read_text(tmp_path / "a.json", "a.json", False, Counter()))


def test_several_sources_follow_each_other(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(talk(1)[0]) + "\n")
    (tmp_path / "b.csv").write_text("text,label,thread\nHi,ok,7\n")
    sources = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv")]
    rows = read_labelled(sources, DataSettings(), POLICY)
    assert [row.where for row in rows] == ["a.jsonl:1", "b.csv:2"]
    (grouped,) = read_labelled(sources[1:], DataSettings(columns=ColumnSettings(group="thread")), POLICY)
    assert grouped.group == "7"


@pytest.mark.parametrize(
    ("cell", "names", "found"),
    [
        *((cell, "no yes", "no") for cell in (0, "0")),
        *((cell, "no yes", "yes") for cell in (1, 1.0, "1", "1.0", " 1")),
        *((cell, "no yes", cell) for cell in (-1, 2, True, 0.5, None, [1], "-1", "2", "yes", "0.5", math.inf)),
        *((cell, "1 0", "0") for cell in (1, 1.0)),
        *(("1", names, "1") for names in ("1 0", "0 1 2")),
    ],
)
def test_a_class_number_becomes_its_name_and_a_name_stays(cell, names, found):
    """-1 is what datasets writes for no class; a table with gaps writes 1.0."""
    row = files.with_class_names(files.Row("a:1", {"label": cell, "other": cell}), {"label": names.split(), "x": []})
    assert row == files.Row("a:1", {"label": found, "other": cell})
