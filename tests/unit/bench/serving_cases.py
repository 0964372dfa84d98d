"""Bursts and trials made by hand, for checking what judges them."""

from __future__ import annotations

from collections.abc import Sequence

from alora.bench.serving.records import Answer, Ask, Burst, Trial, pieces

LABELS = (11, 12)


def burst(
    places: Sequence[int] = (0, 1, 2),
    seconds: float = 1.0,
    cached: Sequence[int] | None = None,
    suffix: int = 4,
    kind: str = "alora",
    scores: Sequence[tuple[float, float]] | None = None,
) -> Burst:
    """A battery about one conversation of 32 tokens; by default the first request computes it and the rest hit it."""
    prefix = tuple(range(100, 132))
    asks = [Ask(prefix + (7,) * suffix + (200 + place,), kind, place, LABELS) for place in places]
    hits = cached if cached is not None else [0] + [32] * (len(asks) - 1)
    rows = scores if scores is not None else [(-0.5 - 0.01 * place, -0.9) for place in places]
    answers = [
        Answer(seconds, seconds, len(ask.prompt_ids), hit, (11,), row)
        for ask, hit, row in zip(asks, hits, rows, strict=True)
    ]
    return Burst(seconds, seconds, 0.1 * seconds, 0.1 * seconds, 1, pieces(asks, answers), tuple(answers))


def trials(arm: str, seconds: Sequence[float], scale: float = 1.0, **how) -> list[Trial]:
    """One trial per round."""
    return [Trial(arm, number, 0, burst(seconds=value, **how), scale) for number, value in enumerate(seconds)]
