"""What a battery will need: seconds, memory and devices, for aLoRA and for standard LoRA.

A device is three numbers: seconds a base operation, seconds an operation of adapted tokens (the base's part included)
and seconds a request. They are fitted to the bursts of a bench record (:func:`fit_rates`), or are shares of the peak
that its maker publishes (:func:`published_rates`). Operations are counted as :mod:`alora.lab.bench.roofline` does, but
with whole last layers: engines trim nothing.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from scipy.optimize import nnls

from alora.config.schema import PlanSettings
from alora.errors import ConfigError
from alora.lab.bench.record import Record
from alora.lab.bench.roofline import FORWARD, FlopCount, causal
from alora.lab.bench.shapes import SHAPES

BLOCK = 16  # tokens; a part of a block is never shared
USABLE = 0.9  # share of a device's memory
BUSIEST = 0.8  # share of a device's time that may be planned
# Of the published peak, and seconds of a request: fitted to vLLM 0.26 with Qwen3-4B on one H100.
EFFICIENCY, REQUEST_S = 0.2, 0.0008


@dataclass(frozen=True)
class Device:
    """Published: dense bfloat16 FLOP/s, bytes a second, bytes."""

    flops: float
    bandwidth: float
    memory: float


DEVICES = {
    "l4": Device(121e12, 0.30e12, 24e9),
    "a100_80gb": Device(312e12, 2.04e12, 80e9),
    "l40s": Device(362e12, 0.86e12, 48e9),
    "h100": Device(989e12, 3.35e12, 80e9),
    "h200": Device(989e12, 4.80e12, 141e9),
    "b200": Device(2250e12, 8.00e12, 180e9),
}


@dataclass(frozen=True)
class Rates:
    """Seconds of one operation of the base, of one of adapted tokens, of one request; and bytes a second."""

    base: float
    adapted: float
    request: float
    bandwidth: float


@dataclass(frozen=True)
class Work:
    """What one turn costs: operations, requests, and tokens that are computed."""

    base: float
    adapted: float
    requests: int
    tokens: int

    def seconds(self, rates: Rates) -> float:
        """On one device."""
        return self.base * rates.base + self.adapted * rates.adapted + self.requests * rates.request


@dataclass(frozen=True)
class BatteryWork(FlopCount):
    """Policies of one shape on one base."""

    suffix: int = 32
    block: int = BLOCK

    def alora(self, tokens: int, policies: int, cached: int = 0) -> Work:
        """Every policy on a conversation whose first ``cached`` tokens were computed before; the rest is computed
        once."""
        kept, part = cached - cached % self.block, tokens % self.block  # the part by every policy
        base = self._base(tokens, kept) + (policies - 1) * self._base(tokens, tokens - part)
        adapted = (self.linear + self.adapter) * self.suffix + self._attention(tokens + self.suffix, tokens)
        computed = tokens - kept + (policies - 1) * part + policies * self.suffix
        return Work(base, policies * adapted, policies, computed)

    def lora(self, tokens: int, policies: int, cached: int = 0) -> Work:
        """The same by standard LoRA: every policy computes the whole prompt behind its own ``cached`` tokens."""
        kept, whole = cached - cached % self.block, tokens + self.suffix
        adapted = (whole - kept) * (self.linear + self.adapter) + self._attention(whole, kept)
        return Work(0, policies * adapted, policies, policies * (whole - kept))

    def _base(self, tokens: int, cached: int) -> float:
        return (tokens - cached) * self.linear + self._attention(tokens, cached)

    def _attention(self, tokens: int, cached: int) -> int:
        return self.attention(causal(tokens) - causal(cached), FORWARD)

    def adapter_bytes(self, itemsize: int) -> int:
        """Of one adapter."""
        return self.adapter // 2 * itemsize


def published_rates(device: Device) -> Rates:
    """The rates of a device that nobody measured, from its published figures."""
    seconds = 1 / (EFFICIENCY * device.flops)
    return Rates(seconds, seconds, REQUEST_S, device.bandwidth)


def fit_rates(record: Record) -> Rates:
    """The three numbers with the smallest relative error on the bursts of ``alora`` and ``lora`` in a record."""
    rows = [
        np.array([work.base, work.adapted, work.requests]) / seconds
        for _, _, systems in bursts(record) for work, seconds in systems.values()
    ]  # fmt: skip
    if len(rows) < 3:
        raise ConfigError("the record holds fewer than two cells with alora and lora; run alora bench serving")
    scales = np.abs(rows).max(axis=0)
    fitted, _ = nnls(np.array(rows) / scales, np.ones(len(rows)))
    base, adapted, request = (fitted / scales).tolist()
    return Rates(base, adapted, request, record.machine.bytes)


def bursts(record: Record) -> list[tuple[int, int, dict[str, tuple[Work, float]]]]:
    """Tokens and policies of each cell of the grid, and by system the work and the median seconds of what it ran."""
    battery, cells = battery_of(record), []
    for cell in (cell for cell in record.cells if cell.workload == "grid" and {"alora", "lora"} <= set(cell.systems)):
        tokens, systems = cell.size("tokens"), dict[str, tuple[Work, float]]()
        for name, count in (("alora", battery.alora), ("lora", battery.lora)):
            runs = [trial.run for trial in cell.of(name)]
            systems[name] = count(tokens, runs[0].pieces), median(run.seconds for run in runs)
        cells.append((tokens, cell.size("policies"), systems))
    return cells


def battery_of(record: Record) -> BatteryWork:
    """The battery that a record measured."""
    settings = record.settings
    if settings.get("shape") not in SHAPES:
        raise ConfigError("the record does not name a shape of alora bench; measure with bench.shape=")
    numbers = int(settings["suffix"]), int(record.engine.get("block", BLOCK))
    return BatteryWork(SHAPES[settings["shape"]], int(settings["rank"]), settings["targets"].split(", "), *numbers)


@dataclass(frozen=True)
class FleetPlan:
    """What one system needs. ``gpus`` None: no number of them meets the target."""

    system: str
    keeps_kv: bool
    turn_s: float  # the last turn alone on a device
    conversation_s: float  # device time of all turns
    cached_share: float  # of the tokens of all prompts: those that no request computes
    gpus: int | None
    p95_s: float | None
    kv_bytes: float  # of all live conversations
    cost: float | None  # an hour


def make_plan(
    settings: PlanSettings, battery: BatteryWork, rates: Rates, memory: float, itemsize: int
) -> list[FleetPlan]:
    """aLoRA and standard LoRA, each by the cheaper of its two ways: keeping KV from turn to turn, or not."""

    def cheaper(system: str) -> FleetPlan:
        both = [_planned(system, keeps, settings, battery, rates, memory, itemsize) for keeps in (True, False)]
        return min(both, key=lambda plan: (plan.gpus is None, plan.gpus or 0, plan.conversation_s))

    return [cheaper("alora"), cheaper("lora")]


def _planned(
    system: str, keeps: bool, settings: PlanSettings, battery: BatteryWork, rates: Rates, memory: float, itemsize: int
) -> FleetPlan:
    lengths = [round(settings.tokens * turn / settings.turns) for turn in range(settings.turns + 1)]
    count = battery.alora if system == "alora" else battery.lora
    weights = battery.shape.parameters * itemsize
    works = [count(now, settings.policies, before if keeps else 0) for before, now in pairwise(lengths)]
    turns = [max(work.seconds(rates), weights / rates.bandwidth) for work in works]
    asked = settings.policies * sum(now + battery.suffix for now in lengths[1:])
    cached = 1 - sum(work.tokens for work in works) / asked
    live = settings.rate * (sum(turns) + (settings.turns - 1) * settings.gap_s)  # Little's law
    copies = 1 if system == "alora" else settings.policies
    kv = battery.shape.kv_bytes(itemsize) * settings.tokens * copies
    whole = kv * (live if keeps else settings.rate * sum(turns))
    room = USABLE * memory - weights - settings.policies * battery.adapter_bytes(itemsize)
    gpus = p95 = None
    one = battery.shape.kv_bytes(itemsize) * (settings.tokens + battery.suffix)
    if room >= one and turns[-1] <= settings.target_ms / 1000:
        least = max(math.ceil(settings.rate * sum(turns) / BUSIEST), math.ceil(whole / room), 1)
        gpus, p95 = _enough(least, settings, turns)
    cost = None if gpus is None or settings.price is None else gpus * settings.price
    return FleetPlan(system, keeps, turns[-1], sum(turns), cached, gpus, p95, whole, cost)


def _enough(least: int, settings: PlanSettings, turns: Sequence[float]) -> tuple[int, float]:
    """The fewest devices, from ``least`` on, whose p95 of the last turn meets the target, which one turn alone does."""

    def p95(gpus: int) -> float:
        return wait_p95(settings.rate / gpus, turns) + turns[-1]

    counts = range(least, sys.maxsize)
    gpus = counts[bisect_left(counts, True, key=lambda count: p95(count) <= settings.target_ms / 1000)]
    return gpus, p95(gpus)


def wait_p95(rate: float, turns: Sequence[float]) -> float:
    """95th percentile of the wait at one device that serves turns in their order: M/G/1 (Pollaczek and Khinchine), with
    an exponential tail for the share of arrivals that find it busy."""
    busy = rate * sum(turns)
    mean = rate * sum(turn * turn for turn in turns) / (2 * (1 - busy))
    return max(0.0, mean / busy * math.log(20 * busy)) if busy > 0.05 else 0.0
