"""The measuring loop: in which order the systems run, what is rehearsed, what is kept of a run that is stopped; and a
record judged again from what it holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from alora.cli import main
from alora.config.schema import BenchSettings
from alora.lab.bench.harness import REHEARSAL, Harness, Turn, draw_orders, judge
from alora.lab.bench.objections import VERDICT_TOLERANCE
from alora.lab.bench.record import load_record, record_json
from alora.lab.bench.trials import AA, Cell
from tests.unit.lab.bench.cases import burst, codes, judged, played, players, right

SYSTEMS = ("base", "alora", "lora", AA, "packed")
CELLS = [Cell("grid", {"tokens": tokens, "policies": 50}, ["alora"]) for tokens in range(100, 1700, 100)]


@pytest.mark.parametrize("ours", ["alora", "packed"])
def test_ours_and_the_a_a_run_take_turns_at_being_first(ours):
    systems = [name for name in SYSTEMS if name in ("lora", "base", AA, ours)]
    begins = []
    for cell in CELLS:
        orders = draw_orders(systems, replace(cell, ours=[ours]), rounds=4, seed=0)
        first = [order.index(AA) < order.index(ours) for order in orders]
        assert first in ([True, False] * 2, [False, True] * 2)
        begins.append(first[0])
    assert len(CELLS) / 4 <= sum(begins) <= 3 * len(CELLS) / 4  # and which of them begins is not a habit either


def test_every_turn_is_rehearsed_and_then_timed_once_a_round_in_an_order_of_its_own():
    """The fault: the sizes of a cell ran for the first time inside the clock, so that its first round was slow."""
    seen: list[tuple[str, int]] = []

    def turn(name: str) -> Turn:
        return lambda number: [seen.append((name, number)) or burst()]

    harness = Harness(BenchSettings(rounds=5))
    harness.measure({name: turn(name) for name in "abcdefgh"}, [cell := Cell("grid", {"tokens": 32}, ["a"])], cells=8)
    assert seen[:8] == [(name, REHEARSAL) for name in "abcdefgh"]
    assert [(trial.system, trial.round) for trial in cell.trials] == seen[8:]
    orders = [[trial.system for trial in cell.trials if trial.round == number] for number in range(5)]
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert harness.cells == [cell]


RESULTS = Path(__file__).parents[4] / "benchmarks/results"


def off(by):
    systems = players()
    for name in ("alora", "aa"):
        systems[name].answers = lambda policy, number: (right(policy)[0] - by, right(policy)[1])
    return judged(played("grid", systems))


def in_bfloat16(record):
    return replace(record, base=replace(record.base, dtype="bfloat16"))


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
