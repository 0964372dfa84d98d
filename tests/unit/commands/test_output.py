"""What a command says."""

import json

import pytest

from alora.commands.output import note, say_json, table


def test_table_aligns_text_left_and_numbers_right(capsys):
    table(("method", "auroc", "rows"), [("alora", 0.98765, 10), ("bag of words", None, 1000)])
    assert capsys.readouterr().out.splitlines() == [
        "method         auroc  rows",
        "------------  ------  ----",
        "alora         0.9877    10",
        "bag of words       -  1000",
    ]


def test_empty_table_shows_its_headers(capsys):
    table(("a", "bb"), [])
    assert capsys.readouterr().out == "a  bb\n-  --\n"


def test_a_row_of_another_width_is_a_mistake():
    with pytest.raises(ValueError, match="zip"):
        table(("a", "b"), [("only",)])


def test_remarks_stay_out_of_the_result(capsys):
    note("a remark")
    say_json({"a": [1, None]})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"a": [1, None]}
    assert captured.err == "a remark\n"
