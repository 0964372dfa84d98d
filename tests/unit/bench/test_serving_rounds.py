"""The measuring loop: what a part of a battery stands for, and in which order the arms run."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from alora.bench.serving.context import Bench, TimeIsUp
from alora.bench.serving.records import Cell
from alora.bench.serving.rounds import REHEARSAL, Turn, orders, run_rounds
from alora.config.schema import BenchSettings, ServingBenchSettings
from tests.unit.bench.serving_cases import burst

ARMS = ("base", "alora", "lora", "null", "packed")
CELLS = [Cell("grid", {"length": length, "adapters": 50}) for length in range(100, 1700, 100)]


def measured(stages, scale):
    turn = Turn("lora", lambda number: [burst(places=(0,)) for _ in stages], scale)
    run_rounds([turn], stages, rounds=2, seed=0, done=lambda burst: None)
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


def bench_of(serving: ServingBenchSettings, deadline: float | None = None) -> Bench:
    bar = cast(Any, SimpleNamespace(total=0, n=0, update=lambda tokens: None))
    return Bench(BenchSettings(serving=serving), *[cast(Any, None)] * 6, bar, deadline=deadline)


def test_every_turn_is_rehearsed_before_the_first_is_timed():
    """The fault: the sizes of a cell ran for the first time inside the clock, so that its first round was slow."""
    seen: list[tuple[str, int]] = []

    def turn(name: str) -> Turn:
        return Turn(name, lambda number: [seen.append((name, number)) or burst()])

    cell, done = Cell("grid", {"length": 32}), []
    run_rounds([turn("lora"), turn("alora")], [cell], rounds=2, seed=0, done=done.append)
    assert seen[:2] == [("lora", REHEARSAL), ("alora", REHEARSAL)]
    assert sorted(seen[2:]) == [("alora", 0), ("alora", 1), ("lora", 0), ("lora", 1)]
    assert sorted((trial.arm, trial.round) for trial in cell.trials) == sorted(seen[2:])
    assert len(done) == 6  # the bar and the limit see the rehearsal too


def test_a_rehearsal_runs_all_of_ours_and_of_lora_what_fills_a_step():
    places = list(range(50))
    for tokens, part in ((None, 50), (10_000, 20)):
        bench = bench_of(ServingBenchSettings(lora_tokens=tokens, step_tokens=4096))
        assert bench.part("alora", places, 500, REHEARSAL) == places
        assert len(bench.part("lora", places, 500, 0)) == part
        assert len(bench.part("lora", places, 500, REHEARSAL)) == 9
    few = bench_of(ServingBenchSettings(lora_tokens=2000, step_tokens=4096))
    assert len(few.part("lora", places, 1000, REHEARSAL)) == 2  # never more than a round


def test_nothing_is_begun_when_the_time_is_up():
    serving = ServingBenchSettings(limit_s=5.0)
    bench_of(serving, deadline=None).done(burst())
    bench_of(serving, deadline=math.inf).done(burst())
    with pytest.raises(TimeIsUp, match=r"the limit of 5 s was reached \(bench.serving.limit_s\)"):
        bench_of(serving, deadline=0.0).done(burst())
