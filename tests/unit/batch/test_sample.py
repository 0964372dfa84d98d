"""alora label: the rows worth a label, and the way back through alora check."""

import json
from collections import Counter

import pytest

from alora.batch.sample import DISAGREES, STRATUM, UNCERTAIN, sample
from alora.cli import main
from alora.config.schema import DataSettings
from alora.data.labelled import read_labelled
from alora.errors import ConfigError
from alora.policy import Policy
from tests.unit.batch.cases import log, probability, verdicts

ROWS = 200


@pytest.fixture
def source(tmp_path):
    return log(tmp_path, ROWS)


@pytest.fixture
def place(tmp_path, source):
    return verdicts(tmp_path / "v.parquet", source)


def test_the_uncertain_come_first_and_every_tenth_is_there(place):
    wanted = sample(place, 30)
    own = {row: said["advice"] for row, said in wanted.items() if "advice" in said}
    assert Counter(said["why"] for said in own.values()) == {UNCERTAIN: 12, STRATUM: 18}
    nearest = sorted(range(ROWS), key=lambda n: (abs(probability(n, "advice") - 0.5), n))[:12]
    assert {row for row, said in own.items() if said["why"] == UNCERTAIN} == set(nearest)
    tenths = Counter(int(said["probability"] * 10) for said in own.values() if said["why"] == STRATUM)
    assert set(tenths) == set(range(10))
    assert all(said["probability"] == pytest.approx(probability(row, "advice")) for row, said in own.items())


def test_rows_on_which_another_version_differs(place, source, tmp_path):
    changed = {4, 90, 150}

    def other(row, policy):
        p = probability(row, policy)
        return 1 - p if policy == "advice" and row in changed else p

    against = verdicts(tmp_path / "other", source, of=other)
    wanted = sample(place, 30, against)
    assert {row for row, said in wanted.items() if said.get("advice", {}).get("why") == DISAGREES} == changed
    assert not [row for row, said in wanted.items() if said.get("refunds", {}).get("why") == DISAGREES]
    source.write_text(source.read_text() + source.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="verdicts on other rows"):
        sample(place, 30, verdicts(tmp_path / "longer", source))


def test_rows_to_which_another_version_gives_another_of_three_labels_differ(place, source, tmp_path):
    wanted = sample(place, 30, verdicts(tmp_path / "other", source, negative="unclear"))
    differ = [row for row, said in wanted.items() if said.get("advice", {}).get("why") == DISAGREES]
    assert len(differ) == 9
    assert all(probability(row, "advice") < 0.5 for row in differ)


def test_labels_that_are_filled_in_are_read_back(place, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["label", f"verdicts={place}", f"data={source}", "output=rows.jsonl", "logs.rows=20"]
    assert main(asked) == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"c{n}" for n in sorted(int(row["id"][1:]) for row in rows)]
    assert Counter(policy for row in rows for policy in row["labels"]) == {"advice": 20, "refunds": 20}
    for number, row in enumerate(rows):
        if "advice" in row["labels"] and number % 3:
            row["labels"]["advice"] = "violation" if number % 2 else "ok"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = Policy("advice", "No advice", "None.")
    read = read_labelled("rows.jsonl", DataSettings(), policy)
    assert [row.labels["advice"] for row in read] == [a for row in rows if (a := row["labels"].get("advice"))]
    assert main(asked) == 2  # somebody's labels are not written over
    assert "somebody may have labelled it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows", "link.jsonl"])
def test_rows_to_label_are_json_lines_in_a_new_file(name, place, source, tmp_path, capsys):
    (tmp_path / "link.jsonl").symlink_to("nowhere.jsonl")
    assert main(["label", f"verdicts={place}", f"data={source}", f"output={tmp_path / name}"]) == 2
    assert ("is there already" if name == "link.jsonl" else "give output=NAME.jsonl") in capsys.readouterr().err
    assert (tmp_path / "link.jsonl").is_symlink()
    assert not (tmp_path / name).exists()
