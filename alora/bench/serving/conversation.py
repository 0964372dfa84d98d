"""``conversation``: turns that grow, the battery at every turn, the cache kept between them: the real product.

Standard LoRA keeps a cache too, one per adapter, as far as memory allows; aLoRA keeps the base's.
"""

from __future__ import annotations

from collections.abc import Sequence

from alora.bench.serving.context import Bench
from alora.bench.serving.records import Burst, Cell
from alora.bench.serving.rounds import Turn


def run_conversation(bench: Bench) -> None:
    """One cell per turn; a round is the whole conversation of one arm, a second or two in all."""
    serving = bench.settings.serving
    bench.bar.set_description("conversation")
    lengths = [serving.turn_tokens * (turn + 1) for turn in range(serving.turns)]
    places = list(range(serving.turn_adapters))
    stages = [
        Cell("conversation", {"turn": turn, "length": length, "adapters": len(places)})
        for turn, length in enumerate(lengths, start=1)
    ]
    bench.ready(bench.names(), places)
    turns = [_talk(bench, name, lengths, places) for name in bench.names()]
    bench.measure(turns, stages, bench.rounds(1))


def _talk(bench: Bench, name: str, lengths: Sequence[int], places: Sequence[int]) -> Turn:
    arm, whole = bench.arms[name], bench.conversation(lengths[-1])

    def run(number: int) -> list[Burst]:
        part = bench.part(name, places, lengths[-1], number)  # the same at every turn: its cache is its own
        arm.forget()
        return [arm.run(whole[:length], part) for length in lengths]

    return Turn(name, run, bench.scale(name, places, lengths[-1]))
