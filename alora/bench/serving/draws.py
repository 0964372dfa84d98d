"""What a seed decides: token ids of conversations, who arrives when, and which policies a request fires."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

FIRST_CONTENT = 20  # token ids below are kept for invocation and labels


def token_ids(vocab: int, count: int, seed: int, banned: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """``count`` random ids that hold no reserved and no ``banned`` token; a longer draw begins with a shorter one."""
    generator = random.Random(f"tokens {seed}")
    found: list[int] = []
    while len(found) < count:
        token = generator.randrange(FIRST_CONTENT, vocab)
        if token not in banned:
            found.append(token)
    return tuple(found)


@dataclass(frozen=True)
class Arrival:
    """A conversation that arrives ``at`` seconds after the start and fires the policies at ``places``."""

    at: float
    conversation: int
    places: tuple[int, ...]


def zipf_weights(population: int, exponent: float) -> np.ndarray:
    """Chance of each policy of a population, the most popular first: proportional to ``1 / rank ** exponent``."""
    weights = 1.0 / np.arange(1, population + 1) ** exponent
    return weights / weights.sum()


def arrivals(
    count: int, rate: float, population: int, fires: Sequence[int], exponent: float, seed: int
) -> list[Arrival]:
    """A Poisson process of ``rate`` conversations a second; each fires from ``fires[0]`` to ``fires[1]`` policies.

    The policies of one conversation are distinct. For one seed, another rate stretches the same arrivals in time, and
    another count only adds arrivals, so that two rates are compared on the same conversations and policies.
    """
    times, counts, generator = (np.random.default_rng([seed, stream]) for stream in range(3))
    weights = zipf_weights(population, exponent)
    gaps = times.exponential(1.0, size=count) / rate
    found, at = [], 0.0
    for number in range(count):
        at += float(gaps[number])
        least, most = (min(end, population) for end in fires)
        many = int(counts.integers(least, most + 1))  # of its own stream: every population is fired as often
        places = generator.choice(population, size=many, replace=False, p=weights)
        found.append(Arrival(at, number, tuple(int(place) for place in places)))
    return found


def distinct_adapters(offered: Sequence[Arrival]) -> int:
    """How many different policies are fired at all: no more than these ever want a slot."""
    return len({place for one in offered for place in one.places})


def popular_last(offered: Sequence[Arrival]) -> list[int]:
    """The policies that are fired, by how often."""
    called = Counter(place for one in offered for place in one.places)
    return sorted(called, key=lambda place: called[place])


def only_fired(offered: Sequence[Arrival], kept: int) -> list[Arrival]:
    """The same arrivals, with the policies behind the ``kept`` most popular numbered on in the order of their call.

    Who is never called needs no adapter, so that a population of a thousand costs no more than what it fires.
    """
    numbers: dict[int, int] = {}
    found = []
    for one in offered:
        places = (place if place < kept else numbers.setdefault(place, kept + len(numbers)) for place in one.places)
        found.append(replace(one, places=tuple(places)))
    return found
