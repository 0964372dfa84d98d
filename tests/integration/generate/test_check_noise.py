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
    for more, expected in (([], []), (["data.noise=true"], ["train.jsonl:11", "train.jsonl:42"])):
        assert main([*asked, "json=true", *more]) == 0
        found = json.loads(capsys.readouterr().out)["findings"]
        assert sorted(item["where"] for item in found if item["code"] == "LABEL_DOUBTFUL") == expected
