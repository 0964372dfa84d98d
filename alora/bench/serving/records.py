"""What an arm is asked, what it answers, and what a timed run of it leaves behind."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BASE_STAGES = ("read", "base", "base again")  # stages in which every arm runs the base, and all of the stage


@dataclass(frozen=True)
class Ask:
    """One request: a prompt, the adapter that should answer (``kind`` None: the base), and how many tokens to make.

    ``label_ids`` are the only tokens that may be answered and whose scores come back; empty means free generation.
    """

    prompt_ids: tuple[int, ...]
    kind: str | None
    place: int
    label_ids: tuple[int, ...]
    new_tokens: int = 1


@dataclass(frozen=True)
class Answer:
    """``first`` and ``last`` token in seconds since the battery was sent; counts are the engine's own."""

    first: float
    last: float
    prompt_tokens: int
    cached_tokens: int
    output_ids: tuple[int, ...]
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A request as work, for comparing arms: the very tokens, which policy, and how much came out."""

    digest: str
    place: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Burst:
    """A battery that was answered. ``seconds`` by the benchmark's clock, ``wall`` on the wall.

    ``front`` is the part until the last request was accepted; ``host`` the scheduler's and output processor's own
    time, None where the engine does not tell.
    """

    seconds: float
    wall: float
    front: float
    host: float | None
    steps: int
    pieces: tuple[Piece, ...]
    answers: tuple[Answer, ...]

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return sum(answer.prompt_tokens - answer.cached_tokens for answer in self.answers)


@dataclass(frozen=True)
class Trial:
    """One timed run: which arm, in which round, at which place of the round's shuffled order."""

    arm: str
    round: int
    place: int
    burst: Burst
    scale: float = 1.0  # batteries in which a round runs a part of the adapters: whole / part

    @property
    def seconds(self) -> float:
        """Seconds of the whole battery."""
        return self.burst.seconds * self.scale

    def sample(self) -> dict[str, Any]:
        """Plain form for ``bench.json``, times in milliseconds; per-request columns in the order of the requests."""
        burst = self.burst
        found: dict[str, Any] = {
            "arm": self.arm, "round": self.round, "place": self.place, "ms": ms(burst.seconds),
            "wall_ms": ms(burst.wall),
            "front_ms": ms(burst.front), "host_ms": None if burst.host is None else ms(burst.host),
            "steps": burst.steps, "requests": len(burst.answers), "computed": burst.computed_tokens,
            "cached": sum(answer.cached_tokens for answer in burst.answers),
            "first_ms": [ms(answer.first) for answer in burst.answers],
        }  # fmt: skip
        if any(answer.last != answer.first for answer in burst.answers):
            found["last_ms"] = [ms(answer.last) for answer in burst.answers]
        if self.scale != 1.0:
            found["scale"] = self.scale
        return found


@dataclass(frozen=True)
class Verdict:
    """An answer of the open loop, in an entry of that ``kind``. ``scores`` as in :class:`Answer`; ``asked``: whether
    the arm's reference is asked about it too, or it is held to the arm's own other answers alone.
    """

    arm: str
    kind: str
    population: int
    prefix_ids: tuple[int, ...]
    place: int
    scores: tuple[float, ...]
    asked: bool = True


@dataclass
class Cell:
    """One condition of a workload with everything measured in it; ``at`` names the condition."""

    workload: str
    at: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)

    def of(self, arm: str) -> list[Trial]:
        """An arm's trials in the order of the rounds."""
        return sorted(
            (trial for trial in self.trials if trial.arm == arm), key=lambda trial: (trial.round, trial.place)
        )

    @property
    def base_alone(self) -> bool:
        """Whether every arm runs the base here, so that nothing is compared and no part stands for a whole."""
        return self.at.get("stage") in BASE_STAGES

    @property
    def cold(self) -> bool:
        """Whether its batteries meet an empty cache."""
        return self.workload == "grid" or self.at.get("turn") == 1

    def left(self, arm: str) -> int:
        """Tokens of the conversation that the stage before this one has left in the cache for this arm."""
        length, turn = self.at["length"], self.at.get("turn")
        if self.cold:
            return 0
        if turn is not None:
            return length - length // turn
        return 0 if arm == "lora" and self.at["stage"] != "again" else length

    @property
    def arms(self) -> list[str]:
        """Names in the order in which they first ran."""
        return list(dict.fromkeys(trial.arm for trial in self.trials))


def ms(seconds: float) -> float:
    """Milliseconds with microseconds behind the point."""
    return round(1000 * seconds, 3)


def piece(ask: Ask, output_tokens: int) -> Piece:
    """An ask as work."""
    digest = hashlib.sha256(repr((ask.prompt_ids, ask.label_ids)).encode()).hexdigest()[:16]
    return Piece(digest, ask.place, len(ask.prompt_ids), output_tokens)


def pieces(asks: Sequence[Ask], answers: Sequence[Answer]) -> tuple[Piece, ...]:
    """All requests of a battery as work."""
    return tuple(piece(ask, len(answer.output_ids)) for ask, answer in zip(asks, answers, strict=True))
