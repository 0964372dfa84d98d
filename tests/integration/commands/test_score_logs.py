"""alora score of a log into Parquet: in order, no row lost, and the same bytes after a kill."""

import json
import re
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

import alora
from alora.cli import main
from tests.forked import kill_when, start_forked
from tests.vllm import bundles as store

ROWS = 50


def talk(number: int) -> dict:
    text = f"Where is parcel {number}? " * (1 + number * 7 % 11)
    return {"id": f"c{number}", "at": f"2026-01-{1 + number // 10:02}T10:00:00",
            "messages": [{"role": "user", "content": text}]}  # fmt: skip


@pytest.fixture
def log(tmp_path) -> Path:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(talk(number)) + "\n" for number in range(ROWS)))
    return file


def arguments(log: object, output: Path, *more: str) -> list[str]:
    own = [f"artifact={store.battery()}", f"base.source={store.base_folder()}"]
    return ["score", *own, f"data={log}", f"output={output}", "logs.shard_rows=8", *more]


def score(log: object, output: Path, *more: str) -> int:
    return main(arguments(log, output, *more))


def contents(place: Path) -> dict[str, bytes]:
    files = place.rglob("*") if place.is_dir() else [place]
    return {file.name: file.read_bytes() for file in files}


def rejected(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["verdicts.parquet", "verdicts"])
def test_the_verdicts_are_those_of_each_row_alone(name, log, tmp_path, capsys):
    assert score(log, tmp_path / name, "data.columns.time=at") == 0
    found = pyarrow.parquet.read_table(tmp_path / name if name.endswith("parquet") else
                                       sorted((tmp_path / name).glob("*.parquet"))).to_pylist()  # fmt: skip
    assert [row["row"] for row in found] == list(range(ROWS))
    assert [(row["id"], row["time"]) for row in found] == [(talk(n)["id"], talk(n)["at"]) for n in range(ROWS)]
    with alora.load(store.battery(), base=store.base_folder()) as battery:
        for row in found[::7]:
            for verdict in battery.score(talk(row["row"])["messages"]):
                own = {name: row[f"{verdict.policy}_{name}"] for name in ("label", "flagged", "threshold", "adapter")}
                assert own == {"label": verdict.label, "flagged": verdict.violated, "threshold": verdict.threshold,
                               "adapter": verdict.adapter_digest}  # fmt: skip
                assert row[f"{verdict.policy}_probability"] == pytest.approx(verdict.probability, abs=1e-6)
    fired = sum(row["advice_flagged"] for row in found)
    assert re.search(rf"^advice +{ROWS} +{fired}$", capsys.readouterr().out, re.MULTILINE)
    leftover = {path.name for path in tmp_path.iterdir()} - {"log.jsonl", name}
    assert not leftover


def test_a_killed_job_goes_on_to_the_same_bytes(log, tmp_path):
    log.write_text(log.read_text().replace('"role": "user"', '"role": "nobody"', 1))  # in the first shard
    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    parts = tmp_path / "killed.parquet.parts"
    assert score(log, whole) == 0
    process = start_forked(*arguments(log, killed), cache=tmp_path / "cache")
    kill_when(process, lambda: (parts / "verdicts-00001.parquet").exists())
    assert not killed.exists()
    kept = {file: file.stat().st_mtime_ns for file in parts.glob("verdicts-*")}
    assert 2 <= len(kept) < 7
    (parts / ".verdicts-00003.parquet.0123abcd.alora-part").write_text("half")
    read, loaded = [], alora.Battery.score_many

    def counting(self, rows, **more):
        return loaded(self, (read.append(row) or row for row in rows), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alora.Battery, "score_many", counting)
        assert score(log, killed) == 0
    assert len(read) == ROWS - 8 * len(kept)  # complete shards are not scored again
    assert killed.read_bytes() == whole.read_bytes()
    assert contents(tmp_path / "killed.rejected.jsonl").popitem()[1] == (tmp_path / "whole.rejected.jsonl").read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize("name", ["v.parquet", "v"])
def test_a_complete_job_is_not_run_again_and_another_one_is_refused(name, log, tmp_path, capsys):
    output = tmp_path / name
    assert score(log, output) == 0
    before = contents(output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("alora.client.in_process.load", lambda *_, **__: pytest.fail("loaded"))
        assert score(log, output) == 0
        assert "is complete already" in capsys.readouterr().err
        for change in ("policies=[advice]", "logs.shard_rows=9", "scoring.max_tokens=9"):
            assert score(log, output, change) == 2
            what = change.split("=")[0].split(".")[-1]
            assert f"holds verdicts of another job: {what}" in capsys.readouterr().err
        log.write_text(log.read_text().replace("parcel 3?", "parcel 4?"))
        assert score(log, output) == 2
        assert "holds verdicts of another job: rows_digest" in capsys.readouterr().err
    assert contents(output) == before


def test_no_row_is_lost(log, tmp_path, capsys, monkeypatch):
    lines = log.read_text().splitlines()
    lines[3], lines[20], lines[49] = '{"messages": []}', "[", json.dumps({"messages": [{"role": "x", "content": "y"}]})
    lines[10] = json.dumps(talk(10) | {"messages": [{"role": "user", "content": "long " * 300}]})
    log.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("alora.base.limits.longest_input", lambda model: 350)
    output = tmp_path / "v.parquet"
    assert score(log, output) == 0
    found = pyarrow.parquet.read_table(output)["row"].to_pylist()
    wrong = rejected(tmp_path / "v.rejected.jsonl")
    assert found == [n for n in range(ROWS) if n not in (3, 10, 20, 49)]
    assert [(row["row"], row["where"]) for row in wrong] == [(n, f"log.jsonl:{n + 1}") for n in (3, 10, 20, 49)]
    for row, words in zip(wrong, ("'messages' is empty", "the prompt has", "not JSON", "role is"), strict=True):
        assert words in " ".join(row["reasons"])
    assert "4 of 50 rows have no verdict; " in capsys.readouterr().err


def test_strict_refuses_before_anything_is_written(log, tmp_path, capsys):
    log.write_text(log.read_text() + "[\n{}\n")
    assert score(log, tmp_path / "v.parquet", "strict=true") == 2
    said = capsys.readouterr().err
    assert "log.jsonl:51: not JSON" in said
    assert "log.jsonl:52: no column" in said
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("name", ["mine.parquet", "mine"])
def test_what_is_not_alora_s_stays(name, log, tmp_path, capsys):
    place = tmp_path / name
    if name == "mine":
        place.mkdir()
        (place / "thesis.txt").write_text("mine")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), place)
    before = contents(place)
    assert score(log, place) == 2
    assert "holds no verdicts" in capsys.readouterr().err
    assert contents(place) == before


def test_the_rows_to_label_are_read_by_the_columns_that_they_were_scored_by(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"t{n},Where is parcel {n}?,It is on its way." for n in range(20)]
    Path("chats.csv").write_text("\n".join(["ticket,customer,agent", *lines]) + "\n")
    columns = ["data.columns.messages='customer,agent'", "data.columns.id=ticket"]
    assert score("chats.csv", tmp_path / "v.parquet", *columns, "data.role_map={customer: user, agent: assistant}") == 0
    asked = ["label", "verdicts=v.parquet", "data=chats.csv"]
    assert main([*asked, "output=rows.jsonl"]) == 0
    assert main(["report", "verdicts=v.parquet", "data=chats.csv"]) == 0
    rows = rejected(Path("rows.jsonl"))
    assert [row["id"] for row in rows] == [f"t{n}" for n in range(20)]
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]
    assert main([*asked, "output=same.jsonl", columns[0]]) == 0  # and what the job says where the user says nothing
    assert [row["id"] for row in rejected(Path("same.jsonl"))] == [f"t{n}" for n in range(20)]
    assert main([*asked, "output=again.jsonl", "data.columns.messages=agent"]) == 2  # what the user says counts
    assert "give data= as alora score had it, and data.columns" in capsys.readouterr().err
