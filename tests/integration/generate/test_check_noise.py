"""``alora check data.noise=true`` names the rows whose label was turned, by file and line."""

import json

from alora.cli import main
from tests.toy_recipe import toy_base_folder, toy_rows


def test_turned_labels_are_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = toy_rows(tmp_path / "train.jsonl", 80)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for number in (10, 41):
        lines[number]["label"] = "ok" if lines[number]["label"] == "violation" else "violation"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    toy_rows(tmp_path / "validation.jsonl", 40, seed=1)
    (tmp_path / "policy.yaml").write_text("id: toy\ntitle: No red\nrule: Nobody says red.\n")
    asked = ["check", f"base.source={toy_base_folder(tmp_path / 'base')}", "policy.file=policy.yaml",
             "data.train=train.jsonl", "data.validation=validation.jsonl", "prompt.max_prefix_tokens=400"]  # fmt: skip
    assert main([*asked, "json=true"]) == 0
    assert not json.loads(capsys.readouterr().out)["findings"]
    assert main([*asked, "json=true", "data.noise=true"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {(item["code"], item["where"]) for item in found} == {
        ("LABEL_DOUBTFUL", "train.jsonl:11"), ("LABEL_DOUBTFUL", "train.jsonl:42"),
    }  # fmt: skip
    assert main([*asked, "strict=true", "data.noise=true"]) == 1
