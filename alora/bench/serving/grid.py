"""``grid``: the published sweep, lengths x adapters, on an empty cache. ``warm``: the same battery after the base has
read the conversation, and once more after itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from alora.bench.serving.context import Bench
from alora.bench.serving.plan import grid_cells, lora_rehearsed
from alora.bench.serving.records import Ask, Burst, Cell
from alora.bench.serving.rounds import REHEARSAL, Turn


def run_grid(bench: Bench) -> None:
    """Cold batteries of one output token."""
    cells = grid_cells(bench.settings.serving)
    for length, adapters in cells:
        bench.bar.set_description(f"grid {length} x {adapters}")
        places = list(range(adapters))
        cell = Cell("grid", {"length": length, "adapters": adapters})
        bench.ready(bench.names(), places)
        turns = [_cold(bench, name, length, places) for name in bench.names()]
        bench.measure(turns, [cell], bench.rounds(len(cells)))


def _cold(bench: Bench, name: str, length: int, places: Sequence[int]) -> Turn:
    arm, prefix = bench.arms[name], bench.conversation(length)

    def run(number: int) -> list[Burst]:
        part = bench.part(name, places, length, number)
        if name == "lora" and number == REHEARSAL:
            part = part[: lora_rehearsed(bench.settings.serving, len(part), length)]
        arm.forget()
        return [arm.run(prefix, part)]

    return Turn(name, run, bench.scale(name, places, length))


def run_warm(bench: Bench) -> None:
    """The base reads the conversation, as the guarded chat model would have; the battery; the same battery again.

    The first stage is the prefill alone, so the second is what remains once the conversation is there.
    """
    assert bench.engine is not None
    serving = bench.settings.serving
    names = bench.names(without=("packed",))  # it keeps no cache
    adapters = max(serving.adapters)
    for length in serving.warm_lengths:
        bench.bar.set_description(f"warm {length} x {adapters}")
        places, at = list(range(adapters)), {"length": length, "adapters": adapters}
        stages = [Cell("warm", {**at, "stage": stage}) for stage in ("read", "warm", "again")]
        bench.ready(names, places)
        turns = [_warm(bench, name, length, places) for name in names]
        bench.measure(turns, stages, bench.rounds(2 * len(serving.warm_lengths)))


def _warm(bench: Bench, name: str, length: int, places: Sequence[int]) -> Turn:
    arm, prefix, engine = bench.arms[name], bench.conversation(length), bench.engine
    assert engine is not None
    reading = Ask(prefix, None, 0, bench.material.labels[0])

    def run(number: int) -> list[Burst]:
        part = bench.part(name, places, length, number)
        arm.forget()
        return [engine.answer([reading]), arm.run(prefix, part), arm.run(prefix, part)]

    return Turn(name, run, bench.scale(name, places, length))
