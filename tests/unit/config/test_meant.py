"""A command line that somebody writes out of another tool's habit, and the line that the message gives to paste."""

import pytest

from alora.cli import main

LIBRARY = ("viable", "mismatched", "Lexer", "EOF", "ANTLR", "Key not in struct", "recursion")
BLANKS = ["training.batch_size" + rest for rest in (" = 4", "|=|4", "=|4", ": 4", ":|4", "=4,")]
MEANT = [
    (["--batch_size", "4"], "training.batch_size=4"),
    (["-lr", "3"], "training.learning_rate=3"),
    *((words.split("|"), "training.batch_size=4") for words in BLANKS),
    (["adapter.targets=[q_proj,]"], "'adapter.targets=[q_proj]'"),
    (["training.learning_rate=0,001"], "a decimal point"),
    (["data.train=~/rows.csv"], """'data.train="~/rows.csv"'"""),
    (["data.train=my rows (1).csv"], """'data.train="my rows (1).csv"'"""),
    (["policy.rule=Never (ever) promise; 100%"], """'policy.rule="Never (ever) promise; 100%"'"""),
    (["data.role_map=" + "{a: " * 300 + "b" + "}" * 300], "nests lists and mappings too deep"),
    (["data.train={a"], "{a: b}"),
    (["recipe=tab.yaml"], "tab.yaml:2"),
]


@pytest.mark.parametrize(("words", "line"), MEANT, ids=lambda value: str(value)[:40])
def test_the_message_has_the_line_to_write(words, line, tmp_path, monkeypatch, capsys):
    (tmp_path / "tab.yaml").write_text("data:\n\ttrain: rows.csv\n")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert [word for word in LIBRARY if word in said] == []


@pytest.mark.parametrize("line", sorted({line for words, line in MEANT if "=" in line}))
def test_the_line_can_be_pasted(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", line.strip("'"), "--cfg", "job"]) == 0
