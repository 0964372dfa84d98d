"""A record is judged again from what it holds: by another bound, or by an answer that was changed in it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alora.cli import main
from alora.lab.bench.guards import VERDICT_TOLERANCE
from alora.lab.bench.judge_again import judge
from alora.lab.bench.record import load_record, record_json
from tests.unit.lab.bench.cases import judged, played, players, right

RESULTS = Path(__file__).parents[4] / "benchmarks/results"


def off(by):
    """aLoRA's answers, so far from the reference's."""
    systems = players()
    for name in ("alora", "aa"):
        systems[name].answers = lambda policy, number: (right(policy)[0] - by, right(policy)[1])
    return judged(played("grid", systems))


def in_bfloat16(record):
    return replace(record, base=replace(record.base, dtype="bfloat16"))


def codes(record):
    return [[one.code for one in ratio.refused] for cell in record.cells for ratio in cell.ratios]


def test_a_record_judged_by_its_own_bound_stays_as_it_is(tmp_path):
    for run in (judged(played("warm", players())), off(1.0)):
        assert record_json(judge(run)) == record_json(run)
        (tmp_path / "bench.json").write_text(record_json(run))
        assert record_json(judge(load_record(tmp_path))) == record_json(run)


def test_a_wider_bound_prints_the_ratio_that_a_narrow_one_withheld():
    """The control: answers that are further away than the wider bound stay withheld."""
    near, far = off(0.05), off(1.0)
    assert codes(near) == codes(far) == [["UNEQUAL_VERDICTS"]]
    again = judge(in_bfloat16(near))
    assert again.tolerance == VERDICT_TOLERANCE[True] > near.cells[0].agreement[0].worst > near.tolerance
    assert codes(again) == [[]]
    assert again.cells[0].ratios[0].ratio == judged(played("grid", players())).cells[0].ratios[0].ratio
    assert codes(judge(in_bfloat16(far))) == [["UNEQUAL_VERDICTS"]]


def test_what_the_answers_say_counts_and_not_what_was_concluded_from_them(tmp_path):
    data = json.loads(record_json(judged(played("grid", players()))))
    (entry, *_) = data["cells"][0]["agreement"]
    entry["answers"][0]["answered"] = [0.9, 0.1]
    (tmp_path / "bench.json").write_text(json.dumps(data))
    assert codes(judge(load_record(tmp_path))) == [["UNEQUAL_VERDICTS"]]


@pytest.mark.parametrize("name", ["serving_gpu", "training_gpu"])
def test_the_command_prints_and_writes_only_where_it_is_told(name, tmp_path, capsys, monkeypatch):
    """Without a GPU: what was measured with the rounded reference stays withheld."""
    monkeypatch.chdir(tmp_path)
    file = RESULTS / f"{name}.json"
    before = file.read_bytes()
    assert main(["bench", "serving", f"bench.judge={file}"]) == 1
    assert "## Withheld" in capsys.readouterr().out
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (before, [])
    assert main(["bench", "serving", f"bench.judge={file}", f"output={tmp_path / 'out'}"]) == 1
    assert load_record(tmp_path / "out") == judge(load_record(file))
