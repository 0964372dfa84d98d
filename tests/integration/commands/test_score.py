"""alora score on rows: JSONL in, JSONL out, in order; what is wrong with a row is named."""

import json
from pathlib import Path

import pytest

import alora
from alora.cli import main
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


def test_a_row_that_is_too_long_is_named_and_the_old_file_stays(rows, tmp_path, capsys, monkeypatch):
    output = tmp_path / "verdicts.jsonl"
    assert score(rows, f"output={output}") == 0
    before = output.read_text()
    monkeypatch.setattr("alora.base.limits.longest_input", lambda model: 60)
    assert score(rows, f"output={output}") == 2
    assert "rows.jsonl:3: the conversation: the prompt has" in capsys.readouterr().err
    assert output.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir() if "alora-part" in entry.name] == []
