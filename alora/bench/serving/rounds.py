"""The one measuring loop: every arm once before the clock starts, then once a round, in an order drawn for every cell
and round, every sample kept.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alora.bench.serving.arms import NULL
from alora.bench.serving.records import Burst, Cell, Trial

REHEARSAL = -1  # the number of the round that is not timed


@dataclass(frozen=True)
class Turn:
    """An arm's turn in a round: from the round's number to one burst per stage of the workload.

    ``scale`` is whole over part of the battery; it says nothing of a stage in which the base runs alone.
    """

    arm: str
    run: Callable[[int], Sequence[Burst]]
    scale: float = 1.0


def run_rounds(
    turns: Sequence[Turn], stages: Sequence[Cell], rounds: int, seed: int, done: Callable[[Burst], None]
) -> None:
    """Run every turn once untimed, so that no batch of its sizes is the first one in a timed round, then ``rounds``
    times, and put those bursts into the cells of their stages.
    """
    by_name = {turn.arm: turn for turn in turns}
    for turn in turns:
        for burst in turn.run(REHEARSAL):
            done(burst)
    for number, order in enumerate(orders([turn.arm for turn in turns], stages[0], rounds, seed)):
        for place, name in enumerate(order):
            turn = by_name[name]
            gc.collect()  # outside the clock, so that no arm pays for another's garbage
            bursts = turn.run(number)
            for cell, burst in zip(stages, bursts, strict=True):
                cell.trials.append(Trial(name, number, place, burst, 1.0 if cell.base_alone else turn.scale))
            for burst in bursts:  # which may end the run: behind all stages of the turn
                done(burst)


def orders(arms: Sequence[str], cell: Cell, rounds: int, seed: int) -> list[list[str]]:
    """The order of the arms in every round of a cell, drawn from the seed and the cell's name.

    Ours and the null arm are one arm under two names, and whoever runs second may find the machine warmer: they take
    turns at being first, and a coin says who begins.
    """
    generator = random.Random(f"{seed} {cell.workload} {sorted(cell.at.items())}")
    ours = "alora" if "alora" in arms else "packed"
    null_first = generator.random() < 0.5
    found = []
    for number in range(rounds):
        order = list(arms)
        generator.shuffle(order)
        if {ours, NULL} <= set(order):
            one, other = order.index(ours), order.index(NULL)
            if (other < one) != (null_first == (number % 2 == 0)):
                order[one], order[other] = order[other], order[one]
        found.append(order)
    return found


def rotating_part(places: Sequence[int], size: int, number: int) -> list[int]:
    """``size`` of ``places`` for round ``number``: after enough rounds every place has had its turn."""
    start = number * size
    return [places[(start + step) % len(places)] for step in range(min(size, len(places)))]
