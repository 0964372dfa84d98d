"""``alora check`` on folders of files: one run tells everything."""

import json
import re
from dataclasses import replace

import pytest

from alora.commands.check import run
from alora.config.schema import BaseSettings, DataSettings, PolicySettings, PromptSettings, Recipe
from tests.toy_models import toy_model
from tests.toy_tokenizers import toy_tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    toy_tokenizer("qwen3").save_pretrained(folder)
    toy_model("qwen3").config.save_pretrained(folder)  # its weights are not looked at
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
    assert [line.split()[:4] for line in out.splitlines() if line.startswith(("train ", "test "))] == [
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
    assert "[NOT_JSON]" in out
    assert "error: train.jsonl:42: label 'maybe'" in out
    assert "[LABEL_ABSENT]" in out
    assert "none.jsonl: no such file" in out
    assert "the answer word 'Unauthorized!' is" in out
    assert "5 errors, 0 warnings: not ready to train" in out


def test_the_report_as_json(tmp_path, base, capsys):
    data = DataSettings(train=write(tmp_path, "train.jsonl", rows(200)))
    assert run(recipe(base, data, json=True)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ready"] is True
    assert {name: part["rows"] for name, part in report["splits"].items()} == {"train": 200}
    assert run(recipe(base, replace(data, folds=1), json=True)) == 0
    split = json.loads(capsys.readouterr().out)["splits"]
    assert {name: part["rows"] for name, part in split.items()} == {"train": 170, "validation": 30}
    assert report["splits"]["train"]["tokens"]["longest"] > 0


def test_a_base_that_is_not_there_hides_no_finding_about_rows(tmp_path, capsys):
    data = DataSettings(train=write(tmp_path, "train.jsonl", [row("x", "maybe")]))
    assert run(recipe(str(tmp_path / "nowhere"), data)) == 2
    out = capsys.readouterr().out
    assert "error: train.jsonl:1: label 'maybe'" in out
    assert "error: base: " in out


def policies_file(folder, *names):
    return write(folder, "policies.yaml", [f"- {{id: {name}, title: No {name}}}" for name in names])


def battery(base, folder, data, *names, **more):
    return Recipe(
        base=BaseSettings(source=base),
        policy=PolicySettings(file=policies_file(folder, *names)),
        policies=["*"],
        data=data,
        **more,
    )


def test_a_battery_with_a_file_for_each_policy(tmp_path, base, capsys):
    for name in ("red", "blue", "grey"):
        write(tmp_path, f"{name}.jsonl", [*rows(40), *rows(40, "chat")])  # the same conversations for all three
    write(tmp_path, "grey.jsonl", ["{", row("x", "maybe")])
    write(tmp_path, "blue.jsonl", [*rows(80), row("talk aa", "ok")])
    data = DataSettings(train=str(tmp_path / "%policy%.jsonl"), validation_share=0.3)
    assert run(battery(base, tmp_path, data, "red", "blue", "grey", "green")) == 2
    out = capsys.readouterr().out
    assert "error: grey.jsonl:1: not JSON" in out
    assert "error: grey.jsonl:2: label 'maybe'" in out
    assert "error: green: train: " in out
    assert "green.jsonl: no such file" in out
    assert "warning: blue: labels: 1 conversations have two different labels (blue.jsonl:1 = blue.jsonl:81)" in out
    assert "red: train" not in out  # the other policies' rows are no duplicates of its own
    assert "3 errors, " in out
    assert "labels, the flagged one first" in out
    assert any(line.split()[:4] == ["red", "violation", "/", "ok"] for line in out.splitlines())


def test_rows_as_tokens(tmp_path, base, capsys):
    content = [*rows(200)]
    content[0] = row("talk \x1b[2J " + "word " * 200 + "end", "violation")
    data = DataSettings(
        train=write(tmp_path, "train.jsonl", content), validation=write(tmp_path, "v.jsonl", rows(40, "v"))
    )
    shown = recipe(base, data, show=3, prompt=PromptSettings(max_prefix_tokens=150))
    assert run(shown) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "train.jsonl:1: title is 'violation'; the adapter starts at index 1" in out
    assert "train.jsonl:2: title is 'ok'" in out
    assert out.count("the adapter starts at index") == 3
    assert "invocation tokens:\n  <|im_start|>|user|\\n|Policy| check|:\n" in out
    assert out.count("taken by truncation, ") == 1
    assert re.search(r"label token, id \d+:\n  Yes\n", out)
