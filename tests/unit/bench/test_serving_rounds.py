"""The measuring loop: what a part of a battery stands for, and in which order the arms run."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from alora.bench.serving.context import Bench
from alora.bench.serving.records import Cell
from alora.bench.serving.rounds import Turn, orders, run_rounds
from alora.config.schema import BenchSettings
from tests.unit.bench.serving_cases import burst

ARMS = ("base", "alora", "lora", "null", "packed")
CELLS = [Cell("grid", {"length": length, "adapters": 50}) for length in range(100, 1700, 100)]


def measured(stages, scale):
    turn = Turn("lora", lambda number: [burst(places=(0,)) for _ in stages], scale)
    run_rounds([turn], stages, rounds=2, seed=0, done=lambda trial: None)
    return stages


@pytest.mark.parametrize(("workload", "stage"), [("warm", "read"), ("pipeline", "base"), ("pipeline", "base again")])
def test_the_base_alone_is_never_a_part_of_a_battery(workload, stage):
    """One prefill of the base takes as long in LoRA's turn as in any other: it is not multiplied."""
    alone, part = measured([Cell(workload, {"stage": stage}), Cell(workload, {"stage": "warm"})], scale=12.5)
    assert [trial.seconds for trial in alone.trials] == [1.0, 1.0]
    assert all("scale" not in trial.sample() for trial in alone.trials)
    assert [trial.seconds for trial in part.trials] == [12.5, 12.5]
    assert all(trial.sample()["scale"] == 12.5 for trial in part.trials)


def test_cells_have_orders_of_their_own_that_a_seed_repeats():
    drawn = [orders(ARMS, cell, rounds=3, seed=0) for cell in CELLS]
    assert all(sorted(order) == sorted(ARMS) for rounds in drawn for order in rounds)
    assert len({str(rounds) for rounds in drawn}) == len(CELLS)
    assert drawn == [orders(ARMS, cell, rounds=3, seed=0) for cell in CELLS]
    assert drawn != [orders(ARMS, cell, rounds=3, seed=1) for cell in CELLS]
    assert orders(ARMS, Cell("warm", CELLS[0].at), 3, 0) != drawn[0]


@pytest.mark.parametrize("ours", ["alora", "packed"])
def test_ours_and_the_null_arm_take_turns_at_being_first(ours):
    arms = [arm for arm in ARMS if arm in ("lora", "base", "null", ours)]
    begins = []
    for cell in CELLS:
        first = [order.index("null") < order.index(ours) for order in orders(arms, cell, rounds=4, seed=0)]
        assert first in ([True, False] * 2, [False, True] * 2)
        begins.append(first[0])
    assert len(CELLS) / 4 <= sum(begins) <= 3 * len(CELLS) / 4  # and which of them begins is no habit either


def test_every_place_of_the_order_is_taken_by_every_arm():
    places = {arm: set() for arm in ARMS}
    for cell in CELLS:
        for order in orders(ARMS, cell, rounds=4, seed=0):
            for place, arm in enumerate(order):
                places[arm].add(place)
    assert all(found == set(range(len(ARMS))) for found in places.values())


def test_a_new_adapter_has_answered_before_it_is_timed():
    """The fault: of two new adapters behind others that were ready, none was asked, and both counted as ready."""
    asked: list[list[int]] = []
    arm = SimpleNamespace(run=lambda prefix, places: asked.append(list(places)))
    bench = Bench(BenchSettings(), cast(Any, None), {"base": cast(Any, arm)}, None, *[cast(Any, None)] * 4)
    bench.conversation = lambda tokens, seed=0: (7,) * tokens
    for places in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]):
        bench.ready(["base"], places)
    assert asked == [[0, 1, 2], [3, 0], [0, 1]]
