"""``alora check`` on folders of files: one run tells everything."""

import json

import pytest

from alora.commands.check import run
from alora.config.schema import BaseSettings, DataSettings, PolicySettings, Recipe
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    toy_tokenizer("qwen3").save_pretrained(folder)
    return str(folder)


def write(folder, name, rows):
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def row(text, label):
    return {"messages": [{"role": "user", "content": text}], "label": label}


def rows(count=40, word="talk"):
    names = "abcdefghijklmnopqrstuvwxyz"
    return [row(f"{word} {names[i // 26]}{names[i % 26]}", ("violation", "ok")[i % 2]) for i in range(count)]


def recipe(base, data, **more):
    return Recipe(base=BaseSettings(source=base), policy=PolicySettings(title="Title"), data=data, **more)


def test_sound_rows_are_ready_and_summed_up(tmp_path, base, capsys):
    data = DataSettings(
        train=write(tmp_path, "train.jsonl", rows()),
        validation=write(tmp_path, "validation.jsonl", rows(20, "chat")),
        test=write(tmp_path, "test.jsonl", rows(20, "note")),
    )
    assert run(recipe(base, data, strict=True)) == 0
    out = capsys.readouterr().out
    assert "0 errors, 0 warnings: ready to train" in out
    assert [line.split()[:4] for line in out.splitlines() if line.startswith("t")] == [
        ["train", "40", "20", "20"], ["test", "20", "10", "10"]
    ]  # fmt: skip


def test_everything_wrong_is_told_in_one_run(tmp_path, base, capsys):
    bad_word = PolicySettings(title="Title", labels={"violation": "Unauthorized!", "ok": "No"})
    data = DataSettings(
        train=write(tmp_path, "train.jsonl", [*rows(), "{", row("x", "maybe")]),
        validation=write(tmp_path, "validation.jsonl", [row(f"v{'x' * i}", "ok") for i in range(30)]),
        test=str(tmp_path / "none.jsonl"),
    )
    wrong = recipe(base, data)
    wrong.policy = bad_word
    assert run(wrong) == 2
    out = capsys.readouterr().out
    assert "error: train.jsonl:41: not JSON" in out
    assert "error: train.jsonl:42: label 'maybe'" in out
    assert "error: validation: no row is labelled 'violation'" in out
    assert "none.jsonl: no such file" in out
    assert "the answer word 'Unauthorized!' is" in out
    assert "5 errors, 0 warnings: not ready to train" in out


def test_warnings_fail_only_when_asked(tmp_path, base, capsys):
    data = DataSettings(
        train=write(tmp_path, "train.jsonl", rows()),
        validation=write(tmp_path, "validation.jsonl", rows(20, "chat")),
        test=write(tmp_path, "test.jsonl", rows(20)),
    )
    assert run(recipe(base, data)) == 0
    assert "warning: test: 20 of its 20 rows are also in train" in capsys.readouterr().out
    assert run(recipe(base, data, strict=True)) == 2


def test_the_report_as_json(tmp_path, base, capsys):
    data = DataSettings(train=write(tmp_path, "train.jsonl", rows(200)))
    assert run(recipe(base, data, json=True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is True
    assert set(report["splits"]) == {"train", "validation"}
    assert report["splits"]["train"]["rows"] + report["splits"]["validation"]["rows"] == 200
    assert report["splits"]["train"]["tokens"]["longest"] > 0


def test_a_base_that_is_not_there_hides_no_finding_about_rows(tmp_path, capsys):
    data = DataSettings(train=write(tmp_path, "train.jsonl", [row("x", "maybe")]))
    assert run(recipe(str(tmp_path / "nowhere"), data)) == 2
    out = capsys.readouterr().out
    assert "error: train.jsonl:1: label 'maybe'" in out
    assert "error: base: " in out


def test_a_policy_that_is_wrong(tmp_path, base, capsys):
    wrong = recipe(base, DataSettings(train=write(tmp_path, "train.jsonl", rows())))
    wrong.policy = PolicySettings(file=str(tmp_path / "none.yaml"))
    assert run(wrong) == 2
    assert "error: policy: " in capsys.readouterr().out
