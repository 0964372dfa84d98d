"""Where rows come from: files that are something else, and data sets of the hub."""

import gzip
import json
import lzma
import tarfile
import zipfile

import datasets
import pyarrow.parquet
import pytest

from alora.config.schema import ColumnSettings, DataSettings
from alora.data import formats, sources
from alora.data.conversation import Message, Rejected, stream_conversations
from alora.data.labelled import read_labelled
from alora.errors import DataError
from alora.findings import Findings
from tests.unit.data.rows import POLICY, jsonl, read, roles, row


@pytest.mark.parametrize(
    "rows",
    [
        (b"\xef\xbb\xbf" + json.dumps(row()).encode(), row()),
        (json.dumps(row()) + "\r", row(), ""),
        (row("NUL \x00 inside"), row()),
        (row("x" * 2**20), row()),
        ({**row(), "messages": [*row()["messages"], {"role": "assistant", "content": "", "extra": 1}]}, row()),
    ],
    ids=["utf-8 mark", "crlf", "escaped NUL", "one megabyte", "an empty answer"],
)
def test_odd_but_sound_files(tmp_path, rows):
    found = read(jsonl(tmp_path, *rows))
    assert len(found) == 2
    assert not found[0].conversation.messages[0].content.startswith("\ufeff")


@pytest.mark.timeout(10)
def test_a_key_that_is_there_twice_is_found_among_many(tmp_path):
    keys = ",".join(f'"key {number}": 1' for number in range(100_000))
    with pytest.raises(DataError, match="the key 'key 99999' is there twice"):
        read(jsonl(tmp_path, f'{{{keys}, "key 99999": 2}}'))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\n \n", "holds no rows"),
        ("a.jsonl", json.dumps(row()).encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        ("a.jsonl", json.dumps(row()).encode("utf-16-le"), "holds NUL bytes"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00", "its gzip data is damaged"),
        ("a.jsonl.gz", gzip.compress(json.dumps(row()).encode(), mtime=0)[:-4], "its gzip data is damaged"),
        ("a.jsonl", b'{\n  "label": "ok"\n}\n', "spreads an object over several lines"),
        ("a.json", b"[", "NOT_JSON"),
        ("a.json", b"[1, 2", "3 problems"),
        ("a.json", b'[{"label": "\xff"}]', "not UTF-8"),
        ("a.csv", b"text,label\nHi,\xff\n", "CSV UTF-8 in a spreadsheet"),
        ("a.csv", b"text,text\nHi,ok\n", "two columns are named 'text'"),
        ("a.csv", b'text,label\n"Hi,ok\n', r"a.csv:2: not CSV: unexpected end of data.*\[NOT_CSV\]"),
        ("a.csv", b"text,label\nHi, you,ok\n", r"a.csv:2: 3 cells and 2 columns.*\[CELLS\]"),
        ("a.csv", b"text,label\nHi\0,ok\n", "NUL bytes"),
        ("a.csv", b"PK\x03\x04", "a spreadsheet or a zip file; save the table as CSV"),
        ("a.jsonl", b"PAR1\x15\x04", "name it .parquet"),
        ("a.jsonl", b"\x7fELF\x00\x00", "holds NUL bytes"),
        ("a.parquet", b"PAR1 not really", "not a Parquet file"),
        ("a.parquet", b"", "not a Parquet file"),
        ("a.csv", b"x,y", "holds no rows"),
        ("a.txt", b"x", "ending '.txt' is not known; give .jsonl, .* .csv"),
    ],
)
def test_a_file_that_is_something_else(tmp_path, name, content, complaint):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read(str(path))


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="is a folder"):
        read(str(tmp_path))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LONGEST_LINE", 1000)
    with pytest.raises(DataError, match=r"train.jsonl:2: longer than .* \[ROW_TOO_LONG\]"):
        read(jsonl(tmp_path, row(), row("x" * 2000)))


def test_a_hub_data_set_with_class_numbers(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ok", "violation"])}
    )
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    datasets.DatasetDict({"train": data, "held": data.select([1])}).save_to_disk(str(tmp_path / "saved"))
    columns = ColumnSettings(messages="text")
    assert [r.labels["p"] for r in read(f"hub:{tmp_path}/saved", columns=columns)] == ["ok", "violation"]
    (held,) = read(f"hub:{tmp_path}/saved:held", columns=columns)
    assert held.conversation.messages == (Message("user", "b"),)
    with pytest.raises(DataError, match="no split 'test'; it has train, held"):
        read(f"hub:{tmp_path}/saved:test", columns=columns)


def test_the_columns_of_a_hub_data_set_are_found_by_its_first_rows(tmp_path):
    rows = {"conversations": [None, row()["messages"]], "text": ["a", "b"], "label": ["ok", "ok"]}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "data")
    found = [item for _, item in stream_conversations(f"hub:{tmp_path / 'data'}")]
    assert [isinstance(item, Rejected) for item in found] == [True, False]
    assert roles(found[1].conversation) == ["user"]


def test_a_hub_data_set_from_a_folder_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set", row("a"), row("b", "violation"), name="train.jsonl")
    rows = read(f"hub:{tmp_path}/set")
    assert [item.conversation.messages[0].content for item in rows] == ["a", "b"]


@pytest.mark.parametrize("name", ["json", "pandas", "text"])
def test_a_folder_of_a_format_s_name_is_read_as_any_other(name, tmp_path, monkeypatch):
    """Given the bare name, datasets reads the current folder by the format; `pandas` unpickles its files."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "train.csv").write_text("prompt,label\nhello,ok\n")
    assert [item.value for item in sources.read_rows(f"hub:{name}", Findings())] == [{"prompt": "hello", "label": "ok"}]


@pytest.mark.parametrize("packed", ["w", "w:gz"])
def test_an_archive_in_a_hub_data_set_is_not_unpacked(packed, tmp_path, monkeypatch):
    """datasets unpacks any file that is one by its content, and a tar's hard link may lead to a user's file."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = jsonl(tmp_path, row())
    (tmp_path / "set").mkdir()
    with tarfile.open(tmp_path / "set/train.jsonl", packed) as archive:
        archive.add(rows, "rows.jsonl")
    with pytest.raises(DataError, match=r"cannot be loaded|is packed"):
        list(sources.read_rows(f"hub:{tmp_path}/set", Findings()))


@pytest.mark.parametrize("file", ["train.xml", "train.tar", "train.h5", "train.lance/data/0.lance", "train.png"])
def test_a_hub_data_set_of_another_format_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set" / file).parent.mkdir(parents=True)
    (tmp_path / "set" / file).write_text("<text>hello</text>")
    with pytest.raises(DataError, match=r"in the format '.*'; give one of json, csv"):
        list(sources.read_rows(f"hub:{tmp_path}/set", Findings()))


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.jsonl.xz", "train.zip"])
def test_a_packed_file_of_a_hub_data_set_is_refused(name, tmp_path, monkeypatch):
    """It may be a bomb, and once it has changed, datasets would read what it held before."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    content = json.dumps(row()).encode()
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / "set" / name, "w") as archive:
            archive.writestr("train.jsonl", content)
    else:
        packed = lzma.compress(content) if name.endswith(".xz") else gzip.compress(content)
        (tmp_path / "set" / name).write_bytes(packed)
    with pytest.raises(DataError, match=rf"{name} is packed \((gzip|xz|zip)\); unpack it, or give a .gz itself"):
        list(sources.read_rows(f"hub:{tmp_path}/set", Findings()))


@pytest.mark.parametrize("saved", [True, False])
def test_media_of_a_hub_data_set_are_never_loaded(saved, tmp_path, monkeypatch):
    """A picture may be any file of whoever reads it, or an address."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    seen = datasets.List({"picture": datasets.Image(), "said": datasets.Value("string")})
    features = {
        "text": datasets.Value("string"),
        "label": datasets.Value("string"),
        "seen": seen,
        "pic": datasets.Image(),
    }
    pic = {"path": None, "bytes": b"none"} if saved else {"path": "http://127.0.0.1:9/a.png", "bytes": None}
    rows = [{"text": text, "label": "ok", "seen": [{"picture": pic, "said": "x"}], "pic": pic} for text in "ab"]
    data = datasets.Dataset.from_list(rows, datasets.Features(features))
    if saved:
        data.save_to_disk(tmp_path / "set")
    else:
        pyarrow.parquet.write_table(data.data.table, tmp_path / "set" / "rows.parquet")
    columns = ColumnSettings(messages="text")
    assert [item.conversation.messages[0].content for item in read(f"hub:{tmp_path}/set", columns=columns)] == [
        "a",
        "b",
    ]


def test_gaps_in_a_hub_data_set_of_csv_are_read_and_what_counts_as_one_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("text,label,score\na,ok,1\nb,None,2\n")
    (tmp_path / "set" / "test.csv").write_text("text,label,score\nc,ok,NA\n")
    findings = Findings()
    rows = list(sources.read_rows(f"hub:{tmp_path}/set", findings))
    assert [row.value["label"] for row in rows] == ["ok", None]
    assert findings.notes == {
        f"words such as None and NA are empty cells of hub:{tmp_path}/set, as datasets reads CSV": 1
    }


@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "named",
    ["http://127.0.0.1:9/rows.jsonl", ["rows.jsonl", {"path": "hf://other/set"}], "reference::rows.jsonl", "data:,x"],
)
def test_a_hub_data_set_does_not_lead_to_addresses(named, card, tmp_path):
    lead = f"configs:\n- config_name: default\n  data_files: {json.dumps(named)}\n"
    (tmp_path / card).write_text(f"---\n{lead}---\n" if card == "README.md" else lead)
    jsonl(tmp_path, row("a"), name="rows.jsonl")
    with pytest.raises(DataError, match=rf"{card} leads to '(http://|hf://|reference::|data:)"):
        read(f"hub:{tmp_path}")


@pytest.mark.parametrize("version", ["../../mine", "{home}/mine", "1/../../../mine"])
def test_a_hub_data_set_chooses_no_place_for_its_copy(version, tmp_path, monkeypatch):
    """datasets' cache of a data set lies below the version that its card names."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "a/b/c/cache")
    (tmp_path / "set").mkdir()
    lead = f"configs:\n- config_name: default\n  data_files: rows.jsonl\n  version: {version.format(home=tmp_path)}\n"
    (tmp_path / "set/README.md").write_text(f"---\n{lead}---\n")
    jsonl(tmp_path / "set", row("a"), name="rows.jsonl")
    with pytest.raises(DataError, match="which is not a file of the data set"):
        read(f"hub:{tmp_path}/set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_file_of_a_hub_data_set_is_not_an_address_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set", row("a"), name="train-reference::rows.jsonl")
    with pytest.raises(DataError, match=r"which is not a file of the data set|cannot be loaded"):
        read(f"hub:{tmp_path}/set")


def test_a_card_with_carriage_returns_is_read_as_datasets_reads_it(tmp_path):
    lead = 'configs:\n- config_name: default\n  data_files: "http://127.0.0.1:9/rows.jsonl"\n'
    (tmp_path / "README.md").write_text(f"---\n\r---\r{lead}---\n", newline="")
    jsonl(tmp_path, row("a"), name="rows.jsonl")
    with pytest.raises(DataError, match=r"README.md leads to 'http://"):
        read(f"hub:{tmp_path}")


@pytest.mark.timeout(60)
def test_an_address_elsewhere_in_a_card_is_accepted_and_aliases_have_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    many = "\n".join(f"x{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'lol'] * 10)}]" for n in range(9))
    lead = "configs:\n- config_name: default\n  data_files: rows.jsonl\n  description: see https://x.y\n"
    (tmp_path / "set" / "README.md").write_text(f"---\n{many}\n{lead}---\n")
    sources._require_plain_card(tmp_path / "set")
    (tmp_path / "set" / "README.md").write_text(f"---\n{lead}---\n")
    jsonl(tmp_path / "set", row("a"), name="rows.jsonl")
    assert len(read(f"hub:{tmp_path}/set")) == 1


@pytest.mark.parametrize("named", ["{home}/secret.txt", "../home/*.txt", "{home}/*", "own.txt", ".own/own.txt"])
def test_a_hub_data_set_does_not_lead_to_other_files(named, tmp_path, monkeypatch):
    """Its card may name any file of whoever reads it, and a link may be any."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret.txt").write_text("S3cr3t\n")
    (tmp_path / "set" / ".own").mkdir(parents=True)
    if named.endswith("own.txt"):
        (tmp_path / "set" / named).symlink_to(tmp_path / "home" / "secret.txt")
    files = named.format(home=tmp_path / "home")
    card = f'---\nconfigs:\n- config_name: default\n  data_files: "{files}"\n---\n'
    (tmp_path / "set" / "README.md").write_text(card)
    with pytest.raises(DataError, match=r"not a file of the data set|is a link"):
        read(f"hub:{tmp_path}/set")


@pytest.mark.parametrize("led", ["{home}/data-00000-of-00001.arrow", "../home/data-00000-of-00001.arrow"])
def test_a_saved_data_set_does_not_lead_to_other_files(led, tmp_path):
    for name in ("home", "set"):
        datasets.Dataset.from_dict({"text": [name], "label": ["ok"]}).save_to_disk(str(tmp_path / name))
    state = json.loads((tmp_path / "set" / "state.json").read_text())
    state["_data_files"] = [{"filename": led.format(home=tmp_path / "home")}]
    (tmp_path / "set" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="is not a file of the data set"):
        read(f"hub:{tmp_path}/set")


def test_a_hub_data_set_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    with pytest.raises(DataError, match="cannot be loaded"):
        read(f"hub:{tmp_path}/none")
    with pytest.raises(DataError, match="write hub:NAME"):
        read("hub:a:b:c:d")


def test_cells_of_a_tsv_that_swallow_rows_are_noted(tmp_path):
    (tmp_path / "train.tsv").write_text('text\tlabel\n"Hi\tok\nb\tviolation\nc"\tok\n')
    findings = Findings()
    assert len(read_labelled(str(tmp_path / "train.tsv"), DataSettings(), POLICY, findings)) == 1
    assert [note for note in findings.notes if "it may be several rows" in note]
