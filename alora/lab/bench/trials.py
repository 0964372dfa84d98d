"""What is measured: a run's work and seconds, the cell that it belongs to, and what is concluded from it, with
intervals: the bootstrap for times and ratios, Student's t for the A/A run."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

import numpy as np
from scipy import stats

RESAMPLES = 999
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """A figure with its interval; ``coverage`` is the chance that the interval holds the true value."""

    value: float
    low: float
    high: float
    coverage: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def times(self, factor: float) -> Self:
        return type(self)(self.value * factor, self.low * factor, self.high * factor, self.coverage)


def median_interval(values: Sequence[float]) -> Measured:
    """Median over rounds with a bootstrap interval. A bootstrap cannot leave the range of its values, which holds the
    true median with chance ``1 - 2 / 2^n``: of few rounds the interval covers no more than that, and says so."""
    value = float(np.median(values))
    if len(values) < 2:
        return Measured(value, value, value, 0.0)
    interval = stats.bootstrap(
        (values,), np.median, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Measured(value, float(interval.low), float(interval.high), min(LEVEL, 1 - 0.5 ** (len(values) - 1)))


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> Measured:
    """Ratio ``slow / fast``, round by round: what drifts in the machine hits both sides of a pair."""
    return median_interval([s / f for s, f in zip(slow, fast, strict=True)])


def mean_ratio(ratios: Sequence[float], coverage: float) -> Measured:
    """Geometric mean of a few rounds' ratios with Student's interval of their logarithms. Three rounds' range covers 75
    %, and would call one fair run in four unfair. This takes the logarithms for normal, which ratios of sums of many
    requests' seconds nearly are."""
    logs = np.log(np.asarray(ratios, dtype=float))
    mean = math.exp(float(logs.mean()))
    if np.ptp(logs) == 0.0:  # SciPy warns of constant input
        return Measured(mean, mean, mean, coverage)
    interval = stats.ttest_1samp(logs, 0.0).confidence_interval(coverage)
    return Measured(mean, math.exp(interval.low), math.exp(interval.high), coverage)


AA = "aa"  # ours once more, under another name: the A/A run
FULL_SEQUENCE = ("peft", "peft_batch", "peft_lora", "peft_lora_batch")  # ours is compared with the fastest
ORDER = ("guard", "lora", "alora", "base", "reader", "packed", *FULL_SEQUENCE, "trainer", "trl", AA)  # of columns
WHAT = {
    "guard": "one POST /v1/guard for all policies; the others are then asked over HTTP, too",
    "lora": "standard LoRA: the same weights, adapted from token 0",
    "alora": "aLoRA through the plugin",
    "base": "the base alone, with the policy's text as prompt",
    "reader": "the same prompts as vLLM's own shared-prefix reader sends them (/v1/systemone)",
    "packed": "the packed scorer, in this process, without a cache between calls",
    "peft_batch": "PEFT's aLoRA over whole prompts, eight conversations of a policy in a batch; `peft`: one",
    "peft_lora_batch": "PEFT's LoRA, the same way; `peft_lora`: one",
    AA: "ours against itself",
}
TRAINING = ("training", "own_rows")  # workloads
READS_TEXT = ("base", "reader")  # systems that read a policy's text, so their prompts are their own


@dataclass(frozen=True)
class Piece:
    """A request or a training pair: the very tokens, the policy, and how much came out."""

    digest: str
    policy: int
    prompt_tokens: int
    output_tokens: int = 1

    @classmethod
    def of(cls, prompt_ids: Sequence[int], wanted: Sequence[int], policy: int, output_tokens: int = 1) -> Self:
        digest = hashlib.sha256(repr((list(prompt_ids), list(wanted))).encode()).hexdigest()[:16]
        return cls(digest, policy, len(prompt_ids), output_tokens)


@dataclass(frozen=True)
class Result:
    """A piece that was done: seconds since the run began, tokens found in a cache, log probabilities of the labels."""

    piece: Piece
    seconds: float = 0.0
    cached_tokens: int = 0
    scores: tuple[float, ...] = ()


@dataclass(frozen=True)
class Run:
    """One run of a system. Token counts are the engine's own; ``requests`` in seconds since the run began, ``front``
    until the last one was accepted (over HTTP: CPU seconds of the API process). ``results`` stay in memory."""

    seconds: float
    wall: float
    pieces: int
    computed: int
    cached: int
    front: float
    requests: list[float]
    results: tuple[Result, ...] = ()

    @classmethod
    def of(cls, seconds: float, wall: float, results: Sequence[Result], front: float = 0.0) -> Self:
        cached = sum(one.cached_tokens for one in results)
        computed = sum(one.piece.prompt_tokens for one in results) - cached
        waits = [round(one.seconds, 6) for one in results if one.seconds]
        return cls(seconds, wall, len(results), computed, cached, front, waits, tuple(results))

    @property
    def work(self) -> list[Piece]:
        return [one.piece for one in self.results]


@dataclass(frozen=True)
class Trial:
    """A timed run: which system, in which round, at which position of the round's shuffled order."""

    system: str
    round: int
    position: int
    run: Run

    @property
    def each(self) -> float:
        """Seconds of one piece: a system may run a part of what ours runs, never other work."""
        return self.run.seconds / max(1, self.run.pieces)


@dataclass(frozen=True)
class Objection:
    """Why there is no number, for programs and for people."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@dataclass(frozen=True)
class SampledAnswer:
    """Label probabilities of one sampled request, the system's and the reference's; empty where one is no number."""

    policy: int
    prefix_tokens: int
    answered: tuple[float, ...]
    reference: tuple[float, ...]


@dataclass(frozen=True)
class Agreement:
    """Verdicts of a system compared with those of ``against``: ``same`` of ``checked`` name the same label.

    ``worst`` is the largest difference of a probability, 1 where an answer is no number; ``moved`` by how much the
    checked adapters move the base's answer on average, None where no adapter is meant to. ``answers``: of requests
    that a reference was asked about.
    """

    system: str
    against: str
    checked: int
    same: int
    worst: float
    moved: float | None = None
    answers: list[SampledAnswer] = field(default_factory=list)


@dataclass(frozen=True)
class Launches:
    """Of a step, or of a layer of it. ``waits``: for a value on the GPU, which stop the host; ``from_python``: tensors
    made of Python numbers, copied while the host waits."""

    launches: float
    waits: float
    from_python: float


@dataclass(frozen=True)
class Ratio:
    """How many times faster ours is than a baseline, piece by piece; None where a guard refused it. ``tokens``: how
    many times more prompt tokens the baseline computed; ``arithmetic``: what the rooflines allow."""

    ours: str
    baseline: str
    ratio: Measured | None
    refused: list[Objection]
    tokens: float | None = None
    arithmetic: float | None = None

    @property
    def faults(self) -> list[Objection]:
        """Other prompts are no fault: the base reads a policy's text."""
        return [one for one in self.refused if one.code != "OTHER_PROMPTS"]

    @property
    def why(self) -> str:
        """Why there is no number, in words: what the first guard found, and how many more objected."""
        found = self.faults
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"withheld: {found[0].text}{more}" if found else "other prompts"


@dataclass(frozen=True)
class Cell:
    """One condition of a workload with everything measured in it; ``at`` names the condition.

    ``ours`` are compared with every other system (empty: nothing is compared), the first of them by the A/A run.
    ``kept``: tokens that the stage before has left in a system's cache; ``roofline``: least seconds of a system's run;
    ``launches``: of a layer.
    """

    workload: str
    at: dict[str, int | str]
    ours: list[str] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)
    roofline: dict[str, float] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    launches: dict[str, Launches] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.workload} ({', '.join(f'{key} {value}' for key, value in self.at.items())})"

    @property
    def systems(self) -> list[str]:
        ran = dict.fromkeys(trial.system for trial in self.trials)
        return [name for name in dict.fromkeys((*self.ours, *ORDER, *ran)) if name in ran]

    def size(self, key: str) -> int:
        return int(self.at[key])

    def of(self, system: str) -> list[Trial]:
        return sorted((t for t in self.trials if t.system == system), key=lambda t: (t.round, t.position))

    def mean(self, system: str, value: Callable[[Run], float]) -> float:
        return fmean(value(trial.run) for trial in self.of(system))

    @property
    def by_piece(self) -> bool:
        """Whether only times of a piece can be compared: in training each system runs as many pairs as it likes."""
        return self.workload in TRAINING or len(self.ours) > 1

    def share(self, system: str) -> float:
        """How many of its runs make a whole burst: more than 1 where a run is a part, which stands for the whole."""
        pieces = self.of(system)[0].run.pieces
        return 1.0 if self.by_piece else max(trial.run.pieces for trial in self.trials) / max(1, pieces)

    def mark(self, system: str) -> str:
        return "~" if self.share(system) > 1 else ""

    def each_ms(self, system: str) -> Measured:
        return median_interval([1000 * trial.each for trial in self.of(system)])

    def whole_ms(self, system: str) -> Measured:
        return self.each_ms(system).times(max(trial.run.pieces for trial in self.trials))

    def request_ms(self, system: str, percent: float) -> Measured | None:
        """A percentile of single requests: the median of the rounds' own, since requests of one round share what the
        machine did in it. None where a run is a part, whose requests wait less."""
        rounds = [trial.run.requests for trial in self.of(system)]
        if self.share(system) > 1 or not all(rounds):
            return None
        return median_interval([1000 * float(np.percentile(one, percent)) for one in rounds])

    def ratio(self, baseline: str) -> Ratio | None:
        return next((ratio for ratio in self.ratios if ratio.baseline == baseline), None)

    def is_headline(self, ratio: Ratio) -> bool:
        """Whether its baseline is the fastest full-sequence trainer of the cell."""
        known = [name for name in FULL_SEQUENCE if self.of(name)]
        return bool(known) and ratio.baseline == min(known, key=lambda name: self.each_ms(name).value)
