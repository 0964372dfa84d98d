"""``alora generate`` by its command line, on a scripted model that answers well."""

import json
import signal
from pathlib import Path

import pytest

from alora.cli import main
from alora.config.schema import DataSettings
from alora.data.splits import read_splits
from alora.policy import read_policies
from tests.forked import start_forked
from tests.integration.llm.scripted import POLICY, asks_for, command, generate, honest, report, right, rows, vote
from tests.unit.llm.endpoint import endpoint


def test_rows_with_their_origin_split_by_pair(capsys):
    code, requests = generate(honest)
    assert (code, requests) == (0, 1 + 12 + 24 * 3)
    train, validation = rows(), rows("validation")
    assert (len(train), len(validation)) == (20, 4)
    assert not {row["pair"] for row in train} & {row["pair"] for row in validation}
    for row in train:
        assert row["label"] == row["generated"]["intended"] == row["id"].rpartition("-")[2]
        assert row["generated"]["votes"][row["label"]] == 3
        assert set(row["generated"]["cell"]) == {"topic", "tone"}
        assert (row["generated"]["model"], row["generated"]["rounds"]) == ("m", 1)
    told = report()
    assert (told["dimensions"], told["agreed_in_round_1"], told["label_as_written"]) == ("model", 1.0, 1.0)
    assert told["requests"] == requests
    assert told["words_auroc"] > 0.95
    assert "[WORDS_SOLVE]" in capsys.readouterr().out  # these two replies give the label away
    splits, left_out = read_splits(
        DataSettings(train="out/train.jsonl", validation="out/validation.jsonl"), read_policies("policy.yaml")
    )
    assert not left_out
    assert [row.labels["no_refunds"] for row in splits.train] == [row["label"] for row in train]


def test_a_killed_command_pays_for_no_answer_twice(tmp_path):
    processes = []

    def deadly(number, body):
        if number == 30:
            processes[0].kill()
        return honest(number, body)

    with endpoint(deadly) as server:
        processes.append(start_forked(*command(server.url), cache=tmp_path / "cache"))
        processes[0].communicate()
        assert processes[0].returncode == -signal.SIGKILL
        assert not Path("out/train.jsonl").exists()
        assert main(command(server.url)) == 0
        asked = [json.dumps(body, sort_keys=True) for body in server.bodies]
    assert len(asked) == 1 + 12 + 72 + 1
    assert len(set(asked)) == len(asked) - 1, "the one that nobody heard the answer to"
    assert len(rows()) == 20


def test_the_key_comes_from_the_environment_and_goes_into_no_file(folder, monkeypatch):
    monkeypatch.setenv("SCRIPTED_KEY", "s3cret-key")
    with endpoint(honest) as server:
        assert main(command(server.url, "judge.api_key_env=SCRIPTED_KEY", pairs=2)) == 0
        assert {headers["authorization"] for headers in server.headers} == {"Bearer s3cret-key"}
    assert not [file for file in folder.rglob("*") if file.is_file() and b"s3cret-key" in file.read_bytes()]


def test_the_budget_in_calls_is_exact_and_more_of_it_goes_on(capsys):
    assert generate(honest, "generate.max_calls=30")[1] == 30
    told = capsys.readouterr().err
    assert "12 pairs: about 84 requests, up to twice as many where judges disagree; budget: max_calls=30" in told
    assert "4/12" in told.rpartition("requests, cost")[0], "while it runs"
    assert "the budget is spent (generate.max_calls=30)" in told
    assert 0 < len(rows()) < 20
    assert generate(honest, "generate.max_calls=30")[1] == 0
    assert generate(honest, "generate.max_calls=1000")[1] == 1 + 12 + 72 - 30
    assert len(rows()) == 20


def test_the_budget_in_money():
    prices = ("judge.input_price=1000", "judge.output_price=0")  # 0.1 for each request of 100 tokens
    assert generate(honest, *prices, "generate.max_cost=2")[1] == 20
    assert report()["cost"] == pytest.approx(2.0)
    generate(honest, *prices, "generate.max_cost=100")
    lines = [json.loads(line) for line in Path("out/calls.jsonl").read_text().splitlines()]
    written = {line["key"]: line["text"] for line in lines if "key" in line}
    kept = [*rows(), *rows("validation")]
    for row in kept:
        assert row["generated"]["cost"] == pytest.approx(0.1 / 2 + 3 * 0.1)
        assert row["messages"][0]["content"] in written[row["generated"]["prompt"]]
    assert report()["cost"] == pytest.approx(0.1 + 24 * 0.35)


def test_judges_that_disagree_hear_each_other_once_and_are_then_left():
    def stubborn(number, body):
        if asks_for(body) != "vote":
            return honest(number, body)
        return vote("violation" if "why the policy is violated" in body["messages"][1]["content"] else "ok")

    code, requests = generate(stubborn, pairs=3)
    assert (code, requests) == (1, 1 + 3 + 6 * 6)
    assert {row["reason"] for row in rows("dropped")} == {"split: the judges did not agree"}
    assert {row["generated"]["rounds"] for row in rows("dropped")} == {2}
    assert rows() == []

    def persuaded(number, body):
        return vote(right(body)) if "Other judges disagree" in str(body) else stubborn(number, body)

    assert generate(persuaded, "output=again", pairs=3)[0] == 0
    assert {row["generated"]["rounds"] for row in rows(folder="again")} == {2}


def test_copies_of_test_rows_are_dropped(folder):
    generate(honest)
    taken = rows()[:3]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in taken))
    assert generate(honest, "data.test=test.jsonl")[1] == 0
    dropped = rows("dropped")
    assert {row["id"] for row in taken} <= {row["id"] for row in dropped}
    assert all(row["reason"].startswith("copy: of") for row in dropped)


def test_a_folder_of_something_else_is_left_alone(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out/train.jsonl").write_text("mine")
    assert generate(honest) == (2, 0)
    assert (folder / "out/train.jsonl").read_text() == "mine"
    (folder / "out/train.jsonl").unlink()
    generate(honest, pairs=1)
    (folder / "policy.yaml").write_text(POLICY.replace("must not", "may"))
    assert generate(honest) == (2, 0)
    assert "rows of another policy or rule" in capsys.readouterr().err


def test_several_models_vote_in_turn_and_each_vote_is_kept():
    def odd(number, body):
        if asks_for(body) != "vote":
            assert body["model"] == "m"
            return honest(number, body)
        return vote("ok" if body["model"] == "lax" else right(body))

    models = "generate.judges=[strict,lax,m]"
    assert generate(odd, models)[0] == 1
    (row, *_) = [row for row in rows("dropped") if row["generated"]["intended"] == "violation"]
    assert row["generated"]["voters"] == [
        {"model": "strict", "label": "violation"}, {"model": "lax", "label": "ok"}, {"model": "m", "label": "violation"}
    ]  # fmt: skip
    assert report()["as_written_by_model"] == {"strict": 1.0, "lax": 0.5, "m": 1.0}
    assert generate(odd, models)[1] == 0


def test_validation_rows_have_a_value_that_no_training_row_has():
    assert generate(honest, "generate.hold_out=topic")[0] == 0
    train, validation = ({row["generated"]["cell"]["topic"] for row in rows(name)} for name in ("train", "validation"))
    assert (len(train), len(validation)) == (2, 1)
    assert not train & validation
    assert len(rows("validation")) == 8
