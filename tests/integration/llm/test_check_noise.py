"""``alora check data.noise=true`` names the rows whose label was turned, by file and line; with a judge, those that it
labels otherwise."""

import json

import pytest

from alora.cli import main
from tests.toy_recipe import toy_base_folder, toy_rows
from tests.unit.llm.endpoint import completion, endpoint, says


def judge(number: int, body: dict) -> object:
    """Right, but for rows 7 and 8; surer of some rows than of others, and not sure at all of row 8."""
    text = body["messages"][1]["content"].partition("<conversation>")[2]
    if "message 0 6 says" in text:
        return says("ok", 70)
    if "message 0 7 says" in text:
        return says("violation", 0)
    return says("violation" if "says red" in text else "ok", 99 if "message 0 41 says" in text else 60)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    toy_rows(tmp_path / "train.jsonl", 80)
    toy_rows(tmp_path / "validation.jsonl", 40, seed=1)
    (tmp_path / "policy.yaml").write_text("id: toy\ntitle: No red\nrule: Nobody says red.\n")
    return ["check", f"base.source={toy_base_folder(tmp_path / 'base')}", "policy.file=policy.yaml",
            "data.train=train.jsonl", "data.validation=validation.jsonl", "prompt.max_prefix_tokens=400"]  # fmt: skip


def test_turned_labels_are_listed(asked, tmp_path, capsys):
    file = tmp_path / "train.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for number in (10, 41):
        lines[number]["label"] = "ok" if lines[number]["label"] == "violation" else "violation"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for more, expected in (([], []), (["data.noise=true"], ["train.jsonl:11", "train.jsonl:42"])):
        assert main([*asked, "json=true", *more]) == 0
        found = json.loads(capsys.readouterr().out)["findings"]
        assert sorted(item["where"] for item in found if item["code"] == "LABEL_DOUBTFUL") == expected
        assert "WORDS_UNSURE" not in {item["code"] for item in found}
    for number in range(0, 80, 3):
        lines[number]["label"] = "ok" if lines[number]["label"] == "violation" else "violation"
    (tmp_path / "noisy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([*asked, "json=true", "data.noise=true", "data.train=noisy.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "WORDS_UNSURE" in {item["code"] for item in found}
    with endpoint(judge) as server:
        more = ["data.noise=true", f"judge.url={server.url}", "judge.model=m"]
        for requests in (80, 80):  # the second time all answers are there
            assert main([*asked, "json=true", *more]) == 0
            found = json.loads(capsys.readouterr().out)["findings"]
            told = [item["where"] for item in found if item["code"] == "JUDGE_DISAGREES"]
            assert told == [f"train.jsonl:{line}" for line in (42, 7, 11, 8)]  # the surest first
            assert len(server.bodies) == requests
    assert main([*asked, "data.noise=true", "judge.url=http://127.0.0.1:9/v1"]) == 2
    assert "no judge.model=NAME" in capsys.readouterr().err


def with_judge(asked, behaviour, capsys) -> list[str]:
    with endpoint(behaviour) as server:
        judged = ("data.noise=true", f"judge.url={server.url}", "judge.model=m", "judge.retries=0")
        assert main([*asked, "json=true", *judged]) == 0
    codes = [item["code"] for item in json.loads(capsys.readouterr().out)["findings"]]
    return [code for code in codes if code.startswith("JUDGE")]


@pytest.mark.parametrize(("unreadable", "warned"), [(25, True), (24, False)])
def test_a_judge_that_cannot_be_read_is_warned_of(unreadable, warned, asked, capsys):
    def behaviour(number, body):
        text = body["messages"][1]["content"].partition("<conversation>")[2]
        row = int(text.partition("message 0 ")[2].split()[0])
        return completion("I would rather not say.") if row < unreadable else says("ok" if row % 2 else "violation")

    assert with_judge(asked, behaviour, capsys) == ["JUDGE_UNREADABLE"] * warned


@pytest.mark.parametrize(("right", "warned"), [(0, True), (1, False)])
def test_a_judge_no_better_than_one_label_for_all_is_warned_of(right, warned, asked, capsys):
    def behaviour(number, body):  # but for ``right`` rows of the other label, all are ok
        text = body["messages"][1]["content"].partition("<conversation>")[2]
        return says("violation" if right and "message 0 0 says" in text else "ok", 99)

    assert with_judge(asked, behaviour, capsys) == ["JUDGE_UNSURE"] * warned + ["JUDGE_DISAGREES"] * (40 - right)


def test_no_judge_is_asked_about_a_policy_without_a_rule(asked, tmp_path, capsys):
    (tmp_path / "policy.yaml").write_text("id: toy\ntitle: No red\nrule: ' '\n")
    with endpoint(judge) as server:
        assert main([*asked, "data.noise=true", f"judge.url={server.url}", "judge.model=m"]) == 2
    assert not server.bodies
    out, remarks = capsys.readouterr()
    assert "policy 'toy' has no rule to judge by; give it one" in out
    assert "asking" not in remarks
