"""Data sets of the hub, through datasets itself, from a small HTTP server that speaks the hub's protocol."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from alora.config.schema import ColumnSettings
from alora.data import sources
from alora.data.conversation import Rejected, stream_conversations
from alora.errors import DataError
from alora.findings import Findings
from tests.unit.data.rows import read, roles, row

COMMIT, ABOUT, FILES = "a" * 40, "/api/datasets/me/chats", "/datasets/me/chats/resolve/"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[dict[str, bytes]]:
    """The files of ``hub:me/chats``, whose copies lie in ``cache``."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = unquote(self.path).partition("?")[0]
            name = path.removeprefix(FILES).partition("/")[2]
            if path == ABOUT or path.startswith(f"{ABOUT}/revision/"):
                self.answer({"id": "me/chats", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
            elif path.startswith(f"{ABOUT}/tree/"):
                self.answer(
                    [{"type": "file", "oid": "0" * 40, "size": len(files[name]), "path": name} for name in files]
                )
            elif path.startswith(FILES) and name in files:
                self.answer(files[name])
            else:
                self.answer(b"", 404, "EntryNotFound")

        do_HEAD = do_GET

        def answer(self, content, status=200, error=None):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache/of/sets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache/hub"))
    monkeypatch.chdir(tmp_path)
    yield files
    server.shutdown()
    thread.join()
    server.server_close()


def lines(*rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def card(**config) -> bytes:
    return f"---\nconfigs:\n- {json.dumps({'config_name': 'default', **config})}\n---\n".encode()


def parquet(features, **columns) -> bytes:
    stream = io.BytesIO()
    datasets.Dataset.from_dict(columns, features=datasets.Features(features)).to_parquet(stream)
    return stream.getvalue()


TEXT = datasets.Value("string")


def test_splits_and_class_numbers(hub):
    features = {"text": TEXT, "label": datasets.ClassLabel(names=["ok", "violation"])}
    hub["train.parquet"] = parquet(features, text=["a", "b"], label=[0, 1])
    hub["test.parquet"] = parquet(features, text=["c"], label=[1])
    columns = ColumnSettings(messages="text")
    assert [r.labels["p"] for r in read("hub:me/chats", columns=columns)] == ["ok", "violation"]
    (held,) = read("hub:me/chats:test", columns=columns)
    assert (held.where, held.conversation.messages[0].content) == ("me/chats:test:1", "c")
    assert len(read("hub:me/chats:default:test", columns=columns)) == 1
    with pytest.raises(DataError, match="no split 'validation'; it has train, test"):
        read("hub:me/chats:validation", columns=columns)


def test_without_a_network_the_copy_in_the_cache_is_read(hub, monkeypatch):
    hub["train.jsonl"] = lines(row("a"), row("b", "violation"))
    online = read("hub:me/chats")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    hub.clear()
    assert [item.conversation for item in read("hub:me/chats")] == [item.conversation for item in online]


def test_the_columns_are_found_by_the_first_rows(hub):
    message = {"role": TEXT, "content": TEXT}
    hub["train.parquet"] = parquet(
        {"conversations": datasets.List(message), "text": TEXT, "label": TEXT},
        conversations=[None, row()["messages"]],
        text=["a", "b"],
        label=["ok", "ok"],
    )
    found = [item for _, item in stream_conversations("hub:me/chats")]
    assert [isinstance(item, Rejected) for item in found] == [True, False]
    assert roles(found[1].conversation) == ["user"]


def test_gaps_of_csv_are_read_and_what_counts_as_one_is_noted(hub):
    hub["train.csv"] = b"text,label,score\na,ok,1\nb,None,2\n"
    hub["test.csv"] = b"text,label,score\nc,ok,NA\n"
    findings = Findings()
    assert [row.value["label"] for row in sources.read_rows("hub:me/chats", findings)] == ["ok", None]
    assert findings.notes == {"words such as None and NA are empty cells of hub:me/chats, as datasets reads CSV": 1}


def test_media_are_never_loaded(hub):
    """A picture may be any file of whoever reads it, or an address."""
    picture = {"path": "http://127.0.0.1:9/a.png", "bytes": None}
    seen = datasets.List({"picture": datasets.Image(), "said": TEXT})
    features = datasets.Features({"text": TEXT, "label": TEXT, "seen": seen, "pic": datasets.Image()})
    rows = [{"text": text, "label": "ok", "seen": [{"picture": picture, "said": "x"}], "pic": picture} for text in "ab"]
    stream = io.BytesIO()
    pyarrow.parquet.write_table(datasets.Dataset.from_list(rows, features).data.table, stream)
    hub["train.parquet"] = stream.getvalue()
    found = read("hub:me/chats", columns=ColumnSettings(messages="text"))
    assert [item.conversation.messages[0].content for item in found] == ["a", "b"]


@pytest.mark.parametrize("file", ["train.xml", "train.tar", "train.h5", "train.png"])
def test_another_format_is_refused(file, hub):
    hub[file] = b"<text>hello</text>"
    with pytest.raises(DataError, match=r"in the format '.*'; give one of json, csv"):
        next(sources.read_rows("hub:me/chats", Findings()))


@pytest.mark.parametrize("packed", ["w", "w:gz"])
def test_an_archive_is_not_unpacked(packed, hub, tmp_path):
    """datasets unpacks any file that is one by its content, and a tar's hard link may lead to a user's file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=packed) as archive:
        entry = tarfile.TarInfo("rows.jsonl")
        content = lines(row())
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    hub["train.jsonl"] = stream.getvalue()
    with pytest.raises(DataError, match="cannot be loaded"):
        next(sources.read_rows("hub:me/chats", Findings()))
    assert not list(tmp_path.rglob("rows.jsonl"))


@pytest.mark.parametrize(
    "files",
    ["http://127.0.0.1:9/rows.jsonl", "reference::rows.jsonl", "{home}/secret.jsonl", "../secret.jsonl", "data:,x"],
)
def test_a_card_does_not_lead_out(files, hub, tmp_path):
    (tmp_path / "secret.jsonl").write_bytes(lines(row("S3cr3t")))
    hub["README.md"] = card(data_files=files.format(home=tmp_path))
    hub["rows.jsonl"] = lines(row())
    with pytest.raises(DataError, match="cannot be loaded") as raised:
        read("hub:me/chats")
    assert "S3cr3t" not in str(raised.value)


@pytest.mark.parametrize("led", ["x/../../hf:/datasets/me/chats@a/rows.jsonl", "hf://datasets/me/chats@a/rows.jsonl"])
def test_a_card_does_not_lead_out_by_a_path_that_looks_its_own(led, hub, tmp_path):
    """datasets compares normalised paths, while fsspec opens what the chain of openers leads to."""
    (tmp_path / "secret.jsonl").write_bytes(lines(row("S3cr3t")))
    hub["README.md"] = card(data_files=f"reference://{led}::hf://datasets/me/chats@main/leads.json")
    hub["leads.json"] = json.dumps({led: [f"file://{tmp_path}/secret.jsonl"]}).encode()
    hub["rows.jsonl"] = lines(row())
    with pytest.raises(DataError, match=r"leads to 'reference://|cannot be loaded"):
        read("hub:me/chats")


@pytest.mark.parametrize("version", ["../../mine", "{home}/mine", "1/../../../../mine"])
def test_a_card_chooses_no_place_for_the_copy(version, hub, tmp_path):
    """datasets' cache of a data set lies below the version that its card names."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/own.txt").write_text("mine")
    hub["README.md"] = card(data_files="rows.jsonl", version=version.format(home=tmp_path))
    hub["rows.jsonl"] = lines(row())
    with pytest.raises(DataError, match=r"leads to .*mine"):
        read("hub:me/chats")
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "mine"}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["own.txt"]


def test_a_file_is_not_an_address_by_its_name(hub):
    hub["train-reference::rows.jsonl"] = lines(row())
    with pytest.raises(DataError, match=r"No \(supported\) data files found"):
        read("hub:me/chats")
