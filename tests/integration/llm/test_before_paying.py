"""What is wrong is said before anything is sent, and what ended a run is said in its report."""

import json
from pathlib import Path

import pytest

from alora.cli import main
from alora.commands.generate import generated
from alora.config.compose import load_recipe
from tests.integration.llm.scripted import command, generate, honest, report, rows
from tests.toy_recipe import toy_overrides
from tests.unit.llm.endpoint import endpoint

BOTH = ("violation", "ok")


def write_rows(name: str, *labels: str) -> None:
    said = [{"id": f"own-{number}", "messages": [{"role": "user", "content": f"Words {number} of my own."}],
             "label": label} for number, label in enumerate(labels)]  # fmt: skip
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in said))


@pytest.mark.parametrize("split", ["test", "validation"])
def test_rows_that_cannot_be_read_are_refused_before(split):
    write_rows("mine.jsonl", *BOTH, "maybe")
    assert generate(honest, f"data.{split}=mine.jsonl") == (2, 0)


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


@pytest.mark.parametrize("pairs", [2, 3])
def test_few_pairs_leave_a_validation_pair(pairs):
    assert generate(honest, pairs=pairs)[0] == 0
    assert {row["label"] for row in rows("validation")} == {"violation", "ok"}


def test_a_dimension_of_one_value_cannot_be_held_out(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out/dimensions.yaml").write_text("topic: [one]\ntone: [calm, angry]\n")
    assert generate(honest, "generate.hold_out=topic") == (2, 0)
    err = capsys.readouterr().err
    assert "hold_out=topic is not a dimension with two values" in err
    assert "out/dimensions.yaml: tone" in err


def test_a_budget_that_ends_the_run_is_in_the_report(capsys):
    assert generate(honest, "generate.max_calls=6", pairs=3)[0] == 1
    said = capsys.readouterr().out
    assert "generate.max_calls=6 was reached before a pair had all its votes [NO_ROWS]" in said
    assert "take another model" not in said
    assert generate(honest, "generate.max_calls=17", pairs=3)[0] == 0
    assert "generate.max_calls=17 was reached after 2 of 3 pairs" in capsys.readouterr().out
    assert (report()["pairs_wanted"], report()["pairs_asked"]) == (3, 2)


@pytest.mark.parametrize("rule", ["rule: ''", ""])
def test_a_policy_without_a_rule_is_refused(folder, rule, capsys):
    (folder / "policy.yaml").write_text(f"id: no_refunds\ntitle: No refund promises\n{rule}\n")
    assert generate(honest) == (2, 0)
    assert "rule" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [("topic: [1, b]", "the file.topic[0]: "), ("topic: []", "one without values"), ("", "the file: ")],
)
def test_dimensions_that_cannot_be_asked_for_are_refused(folder, content, words, capsys):
    (folder / "out").mkdir()
    (folder / "out/dimensions.yaml").write_text(content)
    assert generate(honest) == (2, 0)
    assert words in capsys.readouterr().err


def test_rows_that_were_edited_are_not_written_over(folder, capsys):
    """The same command goes on over what it wrote, a kill between its files included, and over nothing else."""
    assert generate(honest)[0] == 0
    edited = (folder / "out/train.jsonl").read_text().replace("violation", "ok")
    first = (folder / "out/validation.jsonl").read_bytes()
    assert generate(honest, "generate.max_calls=1000", pairs=13)[0] == 0
    (folder / "out/validation.jsonl").write_bytes(first)  # as a kill between the mark and the rows leaves it
    assert generate(honest, pairs=13) == (0, 0)
    (folder / "out/train.jsonl").write_text(edited)
    assert generate(honest) == (2, 0)
    assert "out/train.jsonl was edited since it was written" in capsys.readouterr().err
    assert (folder / "out/train.jsonl").read_text() == edited


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
