"""alora score on rows: JSONL in, JSONL out, in order; what is wrong with a row is named."""

import json
from pathlib import Path

import pytest

import alora
from alora.bundle.read import load_battery
from alora.cli import main
from alora.config.schema import DataSettings
from alora.errors import RunError
from alora.guard.core import GuardCore
from alora.guard.packed import PackedReader
from alora.guard.reader import Served
from alora.guard.standalone import make_app
from tests.clients import listening
from tests.vllm import bundles as store

TEXTS = ("Where is my parcel?", "Take two pills a day.", "A refund, please! " * 9, "Nein, danke: \u2028 done.")


@pytest.fixture
def rows(tmp_path) -> Path:
    file = tmp_path / "rows.jsonl"
    talks = [{"messages": [{"role": "user", "content": text}], "more": 1} for text in TEXTS]
    talks[1]["id"] = "second"
    file.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return file


@pytest.fixture(scope="module")
def wanted() -> list[dict]:
    with alora.load(store.battery(), base=store.base_folder()) as battery:
        return [battery.score([{"role": "user", "content": text}]).as_dict()["verdicts"] for text in TEXTS]


def score(*arguments: object) -> int:
    return main(["score", f"artifact={store.battery()}", f"base.source={store.base_folder()}", *map(str, arguments)])


def read(text: str) -> tuple[list[str], list[list[dict]]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line["conversation"] for line in lines], [line["verdicts"] for line in lines]


def equal(found: list[list[dict]], wanted: list[list[dict]]) -> bool:
    return all(
        one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-6)
        for mine, theirs in zip(found, wanted, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    )


def test_a_line_of_verdicts_for_each_row_in_order(rows, wanted, tmp_path, capsys):
    output = tmp_path / "verdicts.jsonl"
    for _ in range(2):  # the second run replaces the first one's file
        assert score(f"data={rows}", f"output={output}") == 0
        names, found = read(output.read_text())
        assert names == ["rows.jsonl:1", "second", "rows.jsonl:3", "rows.jsonl:4"]
        assert equal(found, wanted)
    fired = sum(mine[0]["label"] == "violation" for mine in wanted)
    assert f"advice      4  {fired:8}" in capsys.readouterr().out


def test_without_output_the_lines_are_printed_alone(rows, wanted, capsys):
    assert score(rows) == 0
    assert equal(read(capsys.readouterr().out)[1], wanted)


def test_rows_on_a_guard(rows, wanted, capsys):
    bundles = load_battery(store.battery())
    reader = PackedReader(store.base(), bundles)
    guard = GuardCore([Served.of(bundle) for bundle in bundles], bundles[0].renderer(store.base()), reader)
    with listening(make_app(guard)) as url:
        assert score(rows, f"scorer={url}") == 0
        assert equal(read(capsys.readouterr().out)[1], wanted)
        assert score(rows, f"scorer={url}", f"policies=[{bundles[1].policy.id}]") == 0
        assert equal(read(capsys.readouterr().out)[1], [mine[1:] for mine in wanted])


def test_one_conversation_is_split_into_turns_as_the_runs_rows_are(tmp_path, capsys, monkeypatch):
    read_as = DataSettings(role_map={"Agent": "assistant", "Customer": "user"})
    monkeypatch.setattr("alora.commands.score.settings_as_trained", lambda *_: read_as)
    row, talk = tmp_path / "row.jsonl", tmp_path / "talk.json"
    for file in (row, talk):
        file.write_text(json.dumps({"id": "one", "text": "Agent: hello\nCustomer: hi"}))
    assert (score(row), score(talk, "json=true")) == (0, 0)
    said, noted = capsys.readouterr()
    line, _, document = said.partition("\n")
    assert json.loads(document) == json.loads(line)
    assert noted.count("role 'Agent' is read as assistant") == 2

    read_as.columns.messages = "context,customer,agent"
    for file in (row, talk):
        file.write_text(json.dumps({"context": "Docs.", "customer": "Hi", "agent": "Hello", "text": "?"}))
    assert (score(row), score(talk, "json=true")) == (0, 0)
    line, _, document = capsys.readouterr().out.partition("\n")
    assert json.loads(document)["verdicts"] == json.loads(line)["verdicts"]
    talk.write_text(json.dumps({"id": "one", "text": "hello"}))
    read_as.columns.messages = "messages"

    def unknown(*_):
        raise RunError("its records disagree")

    monkeypatch.setattr("alora.commands.score.settings_as_trained", unknown)
    assert score(talk) == 0
    assert "its records disagree; rows are read by this command's settings alone" in capsys.readouterr().err


def test_a_bad_row_is_named_and_nothing_is_written(rows, tmp_path, capsys):
    rows.write_text(rows.read_text() + '{"messages": []}\n[\n')
    output = tmp_path / "verdicts.jsonl"
    assert score(rows, f"output={output}") == 2
    printed = capsys.readouterr()
    assert "rows.jsonl:5: 'messages' is empty" in printed.err
    assert "rows.jsonl:6: not JSON" in printed.err
    assert (printed.out, output.exists()) == ("", False)


def test_a_row_that_is_too_long_is_named_and_the_old_file_stays(rows, tmp_path, capsys, monkeypatch):
    output = tmp_path / "verdicts.jsonl"
    assert score(rows, f"output={output}") == 0
    before = output.read_text()
    monkeypatch.setattr("alora.base.limits.longest_input", lambda model: 60)
    assert score(rows, f"output={output}") == 2
    assert "rows.jsonl:3: the conversation: the prompt has" in capsys.readouterr().err
    assert output.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir() if "alora-part" in entry.name] == []


def test_an_artifact_that_is_neither_folder_nor_on_the_hub(rows, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["score", "artifact=nobody/quikstart", str(rows)]) == 2
    said = capsys.readouterr().err
    assert "there is no folder nobody/quikstart, and it cannot be fetched from the hub" in said
    assert "HF_HUB_OFFLINE" in said


def test_a_run_folder_comes_first_and_alone_it_is_no_conversation(rows, wanted, capsys):
    assert main(["score", str(store.battery()), str(rows), f"base.source={store.base_folder()}"]) == 0
    assert equal(read(capsys.readouterr().out)[1], wanted)
    assert main(["score", str(store.battery())]) == 2
    assert f"is a folder, and no conversation; give alora score {store.battery()} FILE.json" in capsys.readouterr().err
