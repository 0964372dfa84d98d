"""What is wrong is said before anything is sent, and what ended a run is said in its report."""

import json
from pathlib import Path

import pytest

from alora.cli import main
from alora.commands.generate import generated
from alora.config.compose import load_recipe
from tests.integration.llm.scripted import command, generate, honest, report
from tests.toy_recipe import toy_overrides
from tests.unit.llm.endpoint import endpoint

BOTH = ("violation", "ok")


def write_rows(name: str, *labels: str) -> None:
    said = [{"id": f"own-{number}", "messages": [{"role": "user", "content": f"Words {number} of my own."}],
             "label": label} for number, label in enumerate(labels)]  # fmt: skip
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in said))


def no_rule(folder):
    (folder / "policy.yaml").write_text("id: no_refunds\ntitle: No refund promises\n")


def dimensions(text):
    def write(folder):
        (folder / "out").mkdir()
        (folder / "out/dimensions.yaml").write_text(text)

    return write


def wrong_rows(folder):
    write_rows("mine.jsonl", *BOTH, "maybe")


WRONG = {
    "test rows with another label": (wrong_rows, ["data.test=mine.jsonl"], "maybe"),
    "validation rows with another label": (wrong_rows, ["data.validation=mine.jsonl"], "maybe"),
    "a policy without a rule": (no_rule, [], "rule"),
    "a value that is no text": (dimensions("topic: [1, b]"), [], "the file.topic[0] is 1"),
    "a dimension without values": (dimensions("topic: []"), [], "one without values"),
    "a dimension of one value, held out": (
        dimensions("topic: [one]\ntone: [calm, angry]\n"), ["generate.hold_out=topic"], "dimensions.yaml: tone"),
    "more judges than votes": (lambda folder: None, ["generate.judges=[a,b,c,d]"], "raise generate.votes to 4"),
    "a budget without prices": (lambda folder: None, ["generate.max_cost=2"], "judge.input_price"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_before_anything_is_asked(case, folder, capsys):
    prepare, more, words = WRONG[case]
    prepare(folder)
    assert generate(honest, *more) == (2, 0)
    assert words in capsys.readouterr().err


def test_settings_that_do_not_fit_the_base_are_refused_before(folder, monkeypatch):
    monkeypatch.setenv("ALORA_CACHE", str(folder / "cache"))
    with endpoint(honest) as server:
        more = ["data.train=generate", "judge.model=m", "generate.pairs=3", f"judge.url={server.url}"]
        assert main(["train", *toy_overrides(folder, folder / "run"), *more, "adapter.rank=99999"]) == 2
        assert server.bodies == []


def test_validation_rows_of_your_own_are_used(folder):
    write_rows("mine.jsonl", *BOTH * 2)
    with endpoint(honest) as server:
        asked = command(server.url, "data.train=generate")[1:]
        asked = [item for item in asked if not item.startswith("output=")]
        for more, expected in (("mine.jsonl", "mine.jsonl"), ("null", "generated/no_refunds/validation.jsonl")):
            recipe = load_recipe("train", [*asked, f"data.validation={more}"], print)
            assert recipe is not None
            assert Path(generated(recipe).data.validation).resolve() == folder / expected


def test_a_budget_that_ends_the_run_is_in_the_report(capsys):
    assert generate(honest, "generate.max_calls=6", pairs=3)[0] == 1
    said = capsys.readouterr().out
    assert "generate.max_calls=6 was reached before a pair had all its votes [NO_ROWS]" in said
    assert "take another model" not in said
    assert generate(honest, "generate.max_calls=17", pairs=3)[0] == 0
    assert "generate.max_calls=17 was reached after 2 of 3 pairs" in capsys.readouterr().out
    assert (report()["pairs_wanted"], report()["pairs_asked"]) == (3, 2)


def test_the_same_command_goes_on_over_what_it_wrote_a_kill_between_its_files_included(folder):
    assert generate(honest)[0] == 0
    first = (folder / "out/validation.jsonl").read_bytes()
    assert generate(honest, "generate.max_calls=1000", pairs=13)[0] == 0
    (folder / "out/validation.jsonl").write_bytes(first)  # as a kill between the mark and the rows leaves it
    assert generate(honest, pairs=13) == (0, 0)


@pytest.mark.parametrize("name", ["train.jsonl", "dropped.jsonl"])
def test_rows_that_are_edited_while_more_are_asked_for_are_not_written_over(folder, name, capsys):
    assert generate(honest)[0] == 0

    def edit(number, body):
        if number == 5:
            (folder / "out" / name).write_text('{"kept": "by hand"}\n')
        return honest(number, body)

    code, asked = generate(edit, pairs=13)
    assert code == 2
    assert asked > 5
    assert f"out/{name} was edited since it was written, and would be written over" in capsys.readouterr().err
    assert (folder / "out" / name).read_text() == '{"kept": "by hand"}\n'
    (folder / "out" / name).unlink()
    assert generate(honest, pairs=13) == (0, 0), "what was answered is paid for once"
