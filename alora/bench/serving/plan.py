"""What a run is going to do: what its progress bar counts before anything has been timed."""

from __future__ import annotations

from collections.abc import Sequence

from alora.bench.serving.draws import Arrival, arrivals, only_fired
from alora.bench.serving.guards import NULL_PAIRS
from alora.config.schema import BenchSettings, ServingBenchSettings

_HALF_A_BLOCK = 16  # what vLLM computes of a prefix again for each request, because it was no whole block


def grid_cells(serving: ServingBenchSettings) -> list[tuple[int, int]]:
    """(length, adapters) of every cell: the whole product, or with ``cross`` the first length's row and the column of
    the most adapters.
    """
    product = [(length, adapters) for length in serving.lengths for adapters in serving.adapters]
    if not serving.cross:
        return product
    most = max(serving.adapters)
    return [(length, adapters) for length, adapters in product if length == serving.lengths[0] or adapters == most]


def rounds(settings: BenchSettings, cells: int) -> int:
    """Rounds of a workload that times each arm over ``cells`` whole batteries in a round: those asked for, and more
    where a round is short. The null arm has one ratio a round, and the less it is a ratio of, the more it scatters.
    """
    return max(settings.rounds, -(-NULL_PAIRS // cells))


def offered(settings: BenchSettings, rate: float, population: int) -> list[Arrival]:
    """The conversations of one tried rate of the open loop: the same at every rate, for every arm."""
    serving = settings.serving
    drawn = arrivals(serving.batteries, rate, population, serving.fires, serving.zipf, settings.seed)
    return only_fired(drawn, min(serving.populations))


def open_loop_adapters(settings: BenchSettings) -> int:
    """Adapters that the open loop fires; all of the smallest population count, which is meant to fit the slots."""
    serving = settings.serving
    called = [place for many in serving.populations for one in offered(settings, 1.0, many) for place in one.places]
    return max(min(serving.populations), 1 + max(called, default=0))


def lora_places(serving: ServingBenchSettings, places: int, length: int) -> int:
    """How many of a battery's policies standard LoRA runs in a round: all, or as many as ``lora_tokens`` allow."""
    return places if serving.lora_tokens is None else min(places, max(1, serving.lora_tokens // length))


def lora_rehearsed(serving: ServingBenchSettings, places: int, length: int) -> int:
    """How many of those it runs in the untimed round of a cold battery: two steps of the engine and what is left of a
    third, since all steps in between are alike.
    """
    return min(places, 2 * serving.step_tokens // length + 1)


def planned_tokens(settings: BenchSettings) -> int:
    """Prompt tokens that the rounds compute, about, with the one that is not timed; the open loop is not among them."""
    serving = settings.serving
    counts = {"grid": _grid, "warm": _warm, "conversation": _conversation, "pipeline": _pipeline}
    cells = {"grid": len(grid_cells(serving)), "warm": 2 * max(1, len(serving.warm_lengths))}
    total = 0
    for name in serving.workloads:
        if name in counts:
            timed = rounds(settings, cells.get(name, 1))
            total += (timed + 1) * counts[name](serving)
    if "grid" in serving.workloads and "lora" in serving.arms:  # of which the untimed round runs a part
        for length, adapters in grid_cells(serving):
            part = lora_places(serving, adapters, length)
            total -= (part - lora_rehearsed(serving, part, length)) * (length + serving.suffix)
    return total


def planned_arrivals(settings: BenchSettings, arms: Sequence[str]) -> int:
    """Conversations that the open loop offers at most."""
    serving = settings.serving
    rounds_of_all = population_rounds(settings) * len(serving.populations)
    return len(arms) * (1 + serving.probes + rounds_of_all) * serving.batteries


def population_rounds(settings: BenchSettings) -> int:
    """Rounds in which the populations of the open loop take turns: an even number, so that each is first as often."""
    return settings.rounds + settings.rounds % 2


def _sharing(serving: ServingBenchSettings, conversation: int, requests: int, without: Sequence[str] = ()) -> int:
    """Tokens of the arms that compute a conversation once, our null arm among them."""
    tails = [serving.policy_tokens if name == "base" else serving.suffix for name in serving.arms
             if name != "lora" and name not in without]  # fmt: skip
    return sum(conversation + requests * (tail + _HALF_A_BLOCK) for tail in [*tails, serving.suffix])


def _grid(serving: ServingBenchSettings) -> int:
    total = 0
    for length, adapters in grid_cells(serving):
        total += _sharing(serving, length, adapters)
        if "lora" in serving.arms:
            total += lora_places(serving, adapters, length) * (length + serving.suffix)
    return total


def _warm(serving: ServingBenchSettings) -> int:
    most, total = max(serving.adapters), 0
    for length in serving.warm_lengths:
        total += _sharing(serving, length, 2 * most, without=("packed",))
        if "lora" in serving.arms:
            total += length + lora_places(serving, most, length) * (length + 2 * serving.suffix)
    return total


def _conversation(serving: ServingBenchSettings) -> int:
    longest, asked = serving.turns * serving.turn_tokens, serving.turns * serving.suffix
    total = _sharing(serving, longest, serving.turn_adapters * serving.turns)
    if "lora" in serving.arms:
        total += lora_places(serving, serving.turn_adapters, longest) * (longest + asked)
    return total


def _pipeline(serving: ServingBenchSettings) -> int:
    whole = serving.pipeline_length + 2 * serving.pipeline_tokens
    lora = 2 * whole if "lora" in serving.arms else 0
    return _sharing(serving, whole, 3, without=("packed", "base")) + lora
