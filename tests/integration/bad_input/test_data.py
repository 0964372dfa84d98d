"""Rows, policies and conversations that cannot be used."""

import json
from dataclasses import replace

from alora.cli import main
from tests.integration.bad_input.conftest import TALK, Case, arguments


def row(number: int, **changes) -> dict:
    """A good row, and what is wrong with it; a change of None removes the key."""
    word, label = ("red", "violation") if number % 2 else ("blue", "ok")
    messages = [{"role": "user", "content": f"message {number} says {word}"}]
    made = {"id": str(number), "messages": messages, "label": label} | changes
    return {key: value for key, value in made.items() if value is not None}


def lines(*last: object, good: int = 8) -> str:
    """Good rows, then ``last``: rows, or lines as they stand."""
    rows = [*map(row, range(good)), *last]
    return "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in rows)


def said(content: object, role: object = "user") -> list:
    return [{"role": role, "content": content}]


def rows_case(content: str | bytes, name: str = "rows.jsonl") -> Case:
    return Case(f"train data.train={{here}}/{name}", files={name: content})


CHECKED = ("error: ", "not ready to train")

ROWS = {
    "empty file": rows_case(""),
    "truncated JSON": rows_case(lines('{"id": "9", "mess', "[" * 1500)),
    "every wrong type, at once": rows_case(
        lines(
            ["a list"],
            row(10, messages="text"),
            row(11, messages=said(3)),
            row(12, messages=said("hi", role="robot")),
            row(13, messages=["text"]),
            row(14, label=0.5),
            row(15, id=[1]),
            row(16, label=None, labels=["violation"]),
        ),
    ),
    "unknown label": rows_case(lines(row(9, label="maybe"))),
    "one class only": rows_case("".join(json.dumps(row(number)) + "\n" for number in range(0, 16, 2))),
    "one row of each label": rows_case(lines(good=2)),
    "text named Parquet": rows_case("no", name="rows.parquet"),
    "sources of a wrong type": Case("train data.train={{a:b}}"),
    "one source of several missing": Case(
        "train data.train=[{here}/rows.jsonl,{here}/no.csv]", files={"rows.jsonl": lines()}
    ),
    "a group that is not a column": Case(
        "train data.train={here}/rows.jsonl data.columns.group=thread", files={"rows.jsonl": lines()}
    ),
    "a folder for a file": Case("train data.train={here}/rows.jsonl", files={"rows.jsonl/inside": ""}),
    "no files: an address, and None": Case("train data.train=[https://example.com/rows.jsonl,file://{here}/a,None]"),
    "bad validation rows": Case("train data.validation={here}/v.jsonl", files={"v.jsonl": "{}\n"}),
    "a share of nothing": Case("train data.validation=null data.validation_share=0"),
    "a share too small": Case(
        "train data.train={here}/rows.jsonl data.validation=null data.folds=1 data.validation_share=0.0001",
        files={"rows.jsonl": lines(good=4)},
    ),
}


def policy_case(content: str | bytes, options: str = "") -> Case:
    return Case(f"train policy.file={{here}}/p.yaml {options}", files={"p.yaml": content})


POLICIES = {
    "no file": Case("train policy.file={here}/p.yaml"),
    "a word of many tokens": policy_case("id: toy\nlabels: {violation: Incomprehensibility, ok: Immeasurability}\n"),
}

CONVERSATIONS = {
    "not JSON": "hello",
    "not UTF-8": b"\xff\xfe{}",
    "no messages": "{}",
    "wrong types": json.dumps(said(3)),
}


CASES = {f"rows: {name}": case for name, case in ROWS.items()}
CASES |= {f"policies: {name}": case for name, case in POLICIES.items()}
CASES |= {
    f"conversations: {name}": Case(
        "score artifact={place}/run conversation={here}/talk.json", files={"talk.json": content}
    )
    for name, content in CONVERSATIONS.items()
}
CASES |= {  # alora check lists its findings as its result
    f"check: {name}": replace(ROWS[name], command=ROWS[name].command.replace("train ", "check ", 1), result=CHECKED)
    for name in ("truncated JSON", "unknown label", "one class only", "one row of each label", "text named Parquet")
}


def test_a_byte_order_mark_is_no_mistake(place, here, capsys):
    (here / "rows.jsonl").write_bytes(lines(good=40).encode("utf-8-sig"))
    (here / "talk.json").write_bytes(json.dumps(TALK).encode("utf-8-sig"))
    command = "check data.train={here}/rows.jsonl data.validation=null data.validation_share=0.5"
    assert main(arguments(command, place, here)) == 0
    assert main(arguments("score artifact={place}/run {here}/talk.json", place, here)) == 0
    assert "Traceback" not in capsys.readouterr().err
