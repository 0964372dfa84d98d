"""The measuring loop: in which order the systems run, what is rehearsed, and what is kept of a run that is stopped."""

from dataclasses import replace

import pytest

from alora.config.schema import BenchSettings
from alora.lab.bench.harness import REHEARSAL, Harness, TimeIsUp, Turn, draw_orders
from alora.lab.bench.trials import AA, Cell
from tests.unit.lab.bench.cases import burst

SYSTEMS = ("base", "alora", "lora", AA, "packed")
CELLS = [Cell("grid", {"tokens": tokens, "policies": 50}, ["alora"]) for tokens in range(100, 1700, 100)]


def test_cells_have_orders_of_their_own_that_a_seed_repeats():
    drawn = [draw_orders(SYSTEMS, cell, rounds=3, seed=0) for cell in CELLS]
    assert all(sorted(order) == sorted(SYSTEMS) for rounds in drawn for order in rounds)
    assert len({str(rounds) for rounds in drawn}) == len(CELLS)
    assert drawn == [draw_orders(SYSTEMS, cell, rounds=3, seed=0) for cell in CELLS]
    assert drawn != [draw_orders(SYSTEMS, cell, rounds=3, seed=1) for cell in CELLS]
    assert draw_orders(SYSTEMS, replace(CELLS[0], workload="warm"), 3, 0) != drawn[0]


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


def test_a_run_that_is_stopped_keeps_the_rounds_that_are_whole():
    for passed in range(12):
        harness, left = Harness(BenchSettings()), [2 + passed]  # two rehearsals

        def in_time(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise TimeIsUp

        harness.in_time = in_time
        stages = [Cell("warm", {"stage": stage}) for stage in ("read", "warm")]
        turns = {name: lambda number: [burst(), burst()] for name in ("lora", "alora")}
        with pytest.raises(TimeIsUp):
            harness.measure(turns, stages, 1)
        harness.keep_whole_rounds()
        kept = passed // 2 if passed >= 4 else 0
        assert [{trial.round for trial in cell.trials} for cell in harness.cells] == 2 * bool(kept) * [set(range(kept))]
        assert all(len(cell.trials) == 2 * kept for cell in harness.cells)
