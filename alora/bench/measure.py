"""Samples: interleaved arms in shuffled order, every one kept, and intervals that assume no distribution."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

COVERAGE = 0.95


@dataclass(frozen=True)
class Sample:
    """One timed step. ``seconds`` is CPU time of the process, or GPU time; ``wall`` is the clock on the wall."""

    arm: str
    round: int
    place: int  # in the shuffled order of its round
    seconds: float
    wall: float


@dataclass(frozen=True)
class Interval:
    """A median and the order statistics around it; ``coverage`` is the chance that they hold the true median."""

    median: float
    low: float
    high: float
    coverage: float

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies inside, ends included."""
        return self.low <= value <= self.high

    def as_dict(self) -> dict[str, float]:
        """Plain form for the report."""
        return asdict(self)


@dataclass(frozen=True)
class Turn:
    """One name in the schedule: what to run, and how to make ready for it without being timed."""

    name: str
    run: Callable[[], Any]
    ready: Callable[[], Any] = lambda: None


class Clock:
    """CPU time of this process (all threads), or the GPU's own time where the arms run on one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def name(self) -> str:
        """What the seconds are."""
        return "GPU time" if self._device.type == "cuda" else "CPU time of the process"

    def time(self, run: Callable[[], Any]) -> tuple[float, float]:
        """Seconds and wall seconds of ``run()``."""
        if self._device.type != "cuda":
            wall, start = time.perf_counter(), time.process_time()
            run()
            return time.process_time() - start, time.perf_counter() - wall
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        wall = time.perf_counter()
        first.record()
        run()
        last.record()
        torch.cuda.synchronize(self._device)
        return first.elapsed_time(last) / 1000, time.perf_counter() - wall


def measure(
    turns: Sequence[Turn],
    rounds: int,
    seed: int,
    clock: Clock,
    done: Callable[[Sample], None] = lambda sample: None,
) -> list[Sample]:
    """Run every turn once a round, in an order that is shuffled anew for each round. Warm up before."""
    order = random.Random(seed)
    samples = []
    for number in range(rounds):
        shuffled = list(turns)
        order.shuffle(shuffled)
        for place, turn in enumerate(shuffled):
            turn.ready()
            seconds, wall = clock.time(turn.run)
            samples.append(Sample(turn.name, number, place, seconds, wall))
            done(samples[-1])
    return samples


def seconds_of(samples: Sequence[Sample], arm: str) -> list[float]:
    """An arm's seconds in the order of the rounds."""
    return [sample.seconds for sample in sorted(samples, key=lambda sample: sample.round) if sample.arm == arm]


def median_interval(values: Sequence[float], wanted: float = COVERAGE) -> Interval:
    """Median of ``values`` with the narrowest pair of order statistics that covers the true one often enough.

    The k-th smallest and k-th largest of n values hold the median with chance ``1 - 2 sum_{i<k} C(n, i) / 2^n``,
    whatever the distribution. With few values even the extremes cover less than wanted; the interval then is the
    extremes, and says so.
    """
    ordered = sorted(values)
    count = len(ordered)
    outside, depth, tail = 2 / 2**count, 1, 1
    while 2 * (depth + 1) <= count + 1:
        tail += math.comb(count, depth)
        if 1 - 2 * tail / 2**count < wanted:
            break
        depth += 1
        outside = 2 * tail / 2**count
    return Interval(statistics.median(ordered), ordered[depth - 1], ordered[-depth], max(0.0, 1 - outside))


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """Ratio ``slow / fast``, value by value: what drifts in the machine hits both sides of a pair."""
    return median_interval([s / f for s, f in zip(slow, fast, strict=True)])


def by_round(samples: Sequence[Sample], arm: str) -> list[float]:
    """One value a round: the median of the arm's samples in it."""
    rounds: dict[int, list[float]] = {}
    for sample in samples:
        if sample.arm == arm:
            rounds.setdefault(sample.round, []).append(sample.seconds)
    return [statistics.median(rounds[number]) for number in sorted(rounds)]
