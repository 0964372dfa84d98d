"""Data sets of the hub, through datasets itself, from a small HTTP server that speaks the hub's protocol."""

import gzip
import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from urllib.parse import unquote

import datasets
import pytest

from alora.config.schema import ColumnSettings
from alora.data import sources
from alora.data.findings import Findings
from alora.errors import DataError
from tests.unit.data.rows import read, row

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
                self.answer(listed(files, path.removeprefix(f"{ABOUT}/tree/").partition("/")[2]))
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
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    sources._find_hub.cache_clear()
    yield files
    sources._find_hub.cache_clear()
    server.shutdown()
    thread.join()
    server.server_close()


def listed(files: dict[str, bytes], folder: str) -> list[dict]:
    """What stands in a folder itself: files and folders."""
    inside = {name: PurePath(name).relative_to(folder).parts for name in files if PurePath(name).is_relative_to(folder)}
    known = {"oid": "0" * 40}
    folders = {str(PurePath(folder, parts[0])) for parts in inside.values() if len(parts) > 1}
    return [{"type": "directory", "path": name, **known} for name in folders] + [
        {"type": "file", "path": name, "size": len(files[name]), **known}
        for name, parts in inside.items()
        if parts[1:] == ()
    ]


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
    assert (held.where, held.conversation.messages[0].content) == ("test.parquet:1", "c")
    assert len(read("hub:me/chats:default:test", columns=columns)) == 1
    with pytest.raises(DataError, match="no split 'validation'; it has train, test"):
        read("hub:me/chats:validation", columns=columns)
    assert sources._find_hub.cache_info().misses == 2  # of one commit, whatever the split: without and with `default`


@pytest.mark.parametrize("cells", [("0", "1"), ("0.0", "1.0"), ("ok", "violation")])
def test_class_numbers_that_the_card_names(cells, hub):
    features = [
        {"name": "text", "dtype": "string"},
        {"name": "label", "dtype": {"class_label": {"names": {"0": "ok", "1": "violation"}}}},
    ]
    lead = {"configs": [{"config_name": "default", "data_files": "r.csv"}], "dataset_info": {"features": features}}
    hub["README.md"] = f"---\n{json.dumps(lead)}\n---\n".encode()
    hub["r.csv"] = "text,label\na,{}\nb,{}\n".format(*cells).encode()
    assert [r.labels["p"] for r in read("hub:me/chats", columns=ColumnSettings(messages="text"))] == ["ok", "violation"]


def test_configurations_and_shards_that_the_card_names(hub):
    for name, text in (("en/a.jsonl", "one"), ("en/b.jsonl", "two"), ("de/a.jsonl", "eins")):
        hub[name] = lines(row(text))
    configs = [{"config_name": name, "data_files": f"{name}/*.jsonl", "default": name == "en"} for name in ("de", "en")]
    hub["README.md"] = f"---\n{json.dumps({'configs': configs})}\n---\n".encode()
    texts = {source: [(item.where, item.conversation.messages[0].content) for item in read(source)]
             for source in ("hub:me/chats", "hub:me/chats:de:train")}  # fmt: skip
    assert texts["hub:me/chats"] == [("en/a.jsonl:1", "one"), ("en/b.jsonl:1", "two")]
    assert texts["hub:me/chats:de:train"] == [("de/a.jsonl:1", "eins")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", b"id,text,label\n007,None,ok\n2024-01-01,b,violation\n9007199254740993,c,ok\n"),
        ("train.jsonl", lines({"id": "2024-01-01", "text": "2024-01-01"}, {"id": 2**60 + 1, "text": "b"})),
        ("train.jsonl.gz", gzip.compress(lines({"text": "a", "label": "ok"}), mtime=0)),
        ("train.csv", b"text;label\na;ok\n"),
    ],
    ids=["csv", "jsonl", "gzip", "semicolons"],
)
def test_a_file_is_read_as_a_users_own(name, content, hub, tmp_path):
    """The package datasets makes numbers of ids, dates of texts, and nothing of the word None."""
    hub[name] = content
    (tmp_path / name).write_bytes(content)
    here, there = Findings(), Findings()
    rows = list(sources.read_rows("hub:me/chats", there.notes))
    assert rows == list(sources.read_rows(name, here.notes))
    assert rows
    assert there.notes == here.notes
    assert there.count == here.count == 0


def test_what_is_wrong_names_the_file_and_the_line(hub):
    hub["data/train.jsonl"] = lines(row()) + b"{\n"
    with pytest.raises(DataError, match=r"data/train.jsonl:2: not JSON"):
        read("hub:me/chats")
    hub["data/train.jsonl"] = lines(row("b"))
    with pytest.raises(DataError, match=r"data/train.jsonl:2: not JSON"):
        read("hub:me/chats")  # the same commit


def test_what_a_card_says_of_reading_is_refused(hub):
    hub["README.md"] = card(data_files="r.csv", skiprows=1)
    hub["r.csv"] = b"text,label\na,ok\n"
    with pytest.raises(DataError, match="its card sets skiprows"):
        read("hub:me/chats")


@pytest.mark.parametrize(
    "files",
    ["http://127.0.0.1:9/rows.jsonl", "reference::rows.jsonl", "{home}/secret.jsonl", "../secret.jsonl", "data:,x"],
)
def test_a_card_does_not_lead_out(files, hub, tmp_path):
    (tmp_path / "secret.jsonl").write_bytes(lines(row("S3cr3t")))
    hub["README.md"] = card(data_files=files.format(home=tmp_path))
    hub["rows.jsonl"] = lines(row())
    with pytest.raises(DataError) as raised:
        read("hub:me/chats")
    assert "S3cr3t" not in str(raised.value)
