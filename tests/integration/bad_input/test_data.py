"""Rows and conversations that are odd, and no mistake."""

import json

from alora.cli import main
from tests.integration.bad_input.conftest import TALK
from tests.integration.bad_input.data import lines, row, said
from tests.integration.bad_input.promise import arguments


def test_a_byte_order_mark_is_no_mistake(place, here, capsys):
    (here / "rows.jsonl").write_bytes(lines(good=40).encode("utf-8-sig"))
    (here / "talk.json").write_bytes(json.dumps(TALK).encode("utf-8-sig"))
    assert main(arguments("check data.train={here}/rows.jsonl", place, here)) == 0
    assert main(arguments("score artifact={place}/run {here}/talk.json", place, here)) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_megabyte_in_one_message_is_cut_and_told(place, here, capsys):
    (here / "rows.jsonl").write_text(lines(row(41, messages=said("a red word " * 100_000)), good=40))
    (here / "talk.json").write_text(json.dumps(said("a red word " * 100_000)))
    assert main(arguments("check data.train={here}/rows.jsonl json=true", place, here)) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["tokens"]["truncated_rows"] == 1
    assert main(arguments("score artifact={place}/run {here}/talk.json", place, here)) == 0
    assert "the conversation was truncated" in capsys.readouterr().err
