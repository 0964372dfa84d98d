"""The measuring loop: in which order the systems run, what is rehearsed, and what is kept of a run that is stopped."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from alora.config.schema import BenchSettings, ServingBenchSettings
from alora.lab.bench.harness import REHEARSAL, Harness, TimeIsUp, Turn, draw_orders
from alora.lab.bench.serving import ServingBench
from alora.lab.bench.systems import System
from alora.lab.bench.trials import AA, Cell, Run
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


class Answered(System):
    """A system that notes what it was asked, and whether its cache was emptied before."""

    keeps = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.emptied = 0

    def forget(self) -> None:
        self.emptied += 1

    def run(self, prefix_ids: tuple[int, ...], policies: Sequence[int]) -> Run:
        self.asked.append(list(policies))
        return burst(tuple(policies))


def serving_of(serving: ServingBenchSettings, **settings: Any) -> tuple[Any, Harness]:
    """A benchmark whose systems note what they are asked."""
    bench: Any = object.__new__(ServingBench)
    own = BenchSettings(serving=serving, **settings)
    harness = Harness(own)
    vars(bench).update(
        _settings=own, _harness=harness, ours="alora", systems={name: Answered() for name in ("lora", "alora")},
        _engine=SimpleNamespace(answer=lambda requests: burst((0,))), _loads=[],
        material=SimpleNamespace(conversation=lambda tokens, seed: (7,) * tokens,
                                 suffixes=[SimpleNamespace(label_token_ids=(1, 2))]),
    )  # fmt: skip
    return bench, harness


def asked(bench: Any) -> dict[str, list[int]]:
    return {name: [len(policies) for policies in system.asked] for name, system in bench.systems.items()}


def test_a_cold_rehearsal_runs_all_of_ours_and_of_lora_what_fills_two_steps():
    sizes = {"prefixes": [500], "policies": [50]}
    bench, harness = serving_of(ServingBenchSettings(lora_tokens=None, step_tokens=4096), **sizes)
    bench._grid()
    assert asked(bench) == {"lora": [17] + 8 * [50], "alora": 9 * [50]}
    assert all(system.emptied == 9 for system in bench.systems.values())
    part, _ = serving_of(ServingBenchSettings(lora_tokens=2000, step_tokens=4096), **sizes)
    part._grid()
    assert asked(part)["lora"] == 9 * [4]  # no more than a round
    assert (
        len({policy for policies in part.systems["lora"].asked[1:] for policy in policies}) == 8 * 4
    )  # others each time
    assert len(harness.cells) == 1


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
