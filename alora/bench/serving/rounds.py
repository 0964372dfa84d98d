"""The one measuring loop: every arm once a round, in an order shuffled anew, every sample kept."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alora.bench.serving.records import Burst, Cell, Trial


@dataclass(frozen=True)
class Turn:
    """An arm's turn in a round: from the round's number to one burst per stage of the workload."""

    arm: str
    run: Callable[[int], Sequence[Burst]]
    scale: float = 1.0


def run_rounds(
    turns: Sequence[Turn], stages: Sequence[Cell], rounds: int, seed: int, done: Callable[[Trial], None]
) -> None:
    """Run every turn ``rounds`` times and put its bursts into the cells of their stages."""
    order = random.Random(seed)
    for number in range(rounds):
        shuffled = list(turns)
        order.shuffle(shuffled)
        for place, turn in enumerate(shuffled):
            gc.collect()  # outside the clock, so that no arm pays for another's garbage
            for cell, burst in zip(stages, turn.run(number), strict=True):
                trial = Trial(turn.arm, number, place, burst, turn.scale)
                cell.trials.append(trial)
                done(trial)


def rotating_part(places: Sequence[int], size: int, number: int) -> list[int]:
    """``size`` of ``places`` for round ``number``: after enough rounds every place has had its turn."""
    start = number * size
    return [places[(start + step) % len(places)] for step in range(min(size, len(places)))]
