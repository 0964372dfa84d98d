"""The measuring loop: what a part of a battery stands for, and in which order the arms run."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from alora.bench.serving import run
from alora.bench.serving.context import Bench, TimeIsUp
from alora.bench.serving.conversation import run_conversation
from alora.bench.serving.grid import run_grid, run_warm
from alora.bench.serving.records import Burst, Cell, Trial
from alora.bench.serving.rounds import REHEARSAL, Turn, orders, run_rounds
from alora.config.schema import BenchSettings, ServingBenchSettings
from alora.errors import CheckFailed
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
    bar = cast(Any, SimpleNamespace(total=0, n=0, update=lambda tokens: None, set_description=lambda text: None))
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


class Answered:
    """An arm that notes what it was asked, and whether its cache was emptied before."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.emptied = 0

    def forget(self) -> None:
        self.emptied += 1

    def run(self, prefix_ids: tuple[int, ...], places: Sequence[int]) -> Burst:
        self.asked.append(len(places))
        return burst(tuple(places))


def rehearsed(workload: Callable[[Bench], None], **serving: Any) -> dict[str, list[int]]:
    """How many policies every arm was asked about in a workload, from the untimed round on."""
    bench = bench_of(ServingBenchSettings(cross=False, arms=["lora", "alora"], **serving))
    bench.arms = cast(Any, {name: Answered() for name in ("lora", "alora")})
    bench.material = cast(Any, SimpleNamespace(conversation=lambda tokens, seed: (7,) * tokens, labels=[(1, 2)]))
    bench.engine = cast(Any, SimpleNamespace(load=lambda kind, places: None, answer=lambda asks: burst((0,))))
    workload(bench)
    assert all(cast(Any, arm).emptied >= len(cell.of(name)) for cell in bench.cells for name, arm in bench.arms.items())
    return {name: cast(Any, arm).asked for name, arm in bench.arms.items()}


def test_a_cold_rehearsal_runs_all_of_ours_and_of_lora_what_fills_two_steps():
    sizes = {"lengths": [500], "adapters": [50]}
    whole = rehearsed(run_grid, lora_tokens=None, step_tokens=4096, **sizes)
    assert whole == {"lora": [17] + 8 * [50], "alora": 9 * [50]}
    assert rehearsed(run_grid, lora_tokens=2000, step_tokens=4096, **sizes)["lora"] == 9 * [4]  # no more than a round


@pytest.mark.parametrize(("workload", "batteries"), [(run_warm, 2), (run_conversation, 3)])
def test_a_rehearsal_behind_a_cache_runs_what_the_rounds_run(workload, batteries):
    """The fault: its steps were counted as if the conversation were not there, so that LoRA's sizes, and only those,
    ran for the first time inside the clock.
    """
    asked = rehearsed(
        workload, lora_tokens=None, step_tokens=64, adapters=[9], warm_lengths=[500], turns=3, turn_tokens=96,
        turn_adapters=9,
    )  # fmt: skip
    assert set(asked["lora"]) == set(asked["alora"]) == {9}
    assert len(asked["lora"]) == len(asked["alora"]) >= 5 * batteries


def test_a_run_that_is_stopped_keeps_the_rounds_that_are_whole():
    stages = [Cell("warm", {"stage": stage}) for stage in ("read", "warm")]

    def stopped_after(bursts: int) -> Bench:
        bench, left = bench_of(ServingBenchSettings()), [bursts]

        def in_time() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise TimeIsUp

        bench.in_time = in_time
        for cell in stages:
            cell.trials = []
        turns = [Turn(name, lambda number: [burst(), burst()]) for name in ("lora", "alora")]
        with pytest.raises(TimeIsUp):
            bench.measure(turns, stages, rounds=5)
        bench.keep_whole_rounds()
        return bench

    begin, rehearsal = 1, 4
    for passed in range(18):  # the turn that is told of the end has run; a round is two turns of two bursts
        bench = stopped_after(begin + rehearsal + passed)
        whole = (passed // 2 + 1) // 2
        kept = whole if whole >= 2 else 0
        assert [{trial.round for trial in cell.trials} for cell in bench.cells] == 2 * bool(kept) * [set(range(kept))]
        assert all(len(cell.trials) == 2 * kept for cell in bench.cells)


def test_whatever_stops_a_run_its_cells_and_whole_rounds_are_kept(monkeypatch):
    bench = bench_of(ServingBenchSettings(workloads=["grid", "warm"]))
    bench.arms = {}
    finished, stopped = Cell("grid", {"length": 32}), Cell("grid", {"length": 64})

    def grid(bench: Bench) -> None:
        bench.cells.append(finished)
        bench.underway = [stopped]
        stopped.trials += [Trial(name, number, 0, burst()) for number in range(3) for name in ("lora", "alora")][:5]
        raise CheckFailed("vLLM did not empty its prefix cache")

    monkeypatch.setattr(run, "run_grid", grid)
    monkeypatch.setattr(run, "run_warm", lambda bench: pytest.fail("it went on"))
    assert run._run_workloads(bench) == ([], "CheckFailed: vLLM did not empty its prefix cache")
    assert bench.cells == [finished, stopped]
    assert [trial.round for trial in stopped.trials] == [0, 0, 1, 1]


def test_nothing_is_begun_when_the_time_is_up():
    serving = ServingBenchSettings(limit_s=5.0)
    bench_of(serving, deadline=None).done(burst())
    bench_of(serving, deadline=math.inf).done(burst())
    with pytest.raises(TimeIsUp, match=r"the limit of 5 s was reached \(bench.serving.limit_s\)"):
        bench_of(serving, deadline=0.0).done(burst())
