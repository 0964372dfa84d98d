"""From samples to figures: intervals, agreement, ratios where no guard objects, and the distance to the floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from alora.bench.measure import Interval, median_interval, paired_ratio
from alora.bench.serving import guards
from alora.bench.serving.arms import NULL
from alora.bench.serving.context import Bench
from alora.bench.serving.floor import Floors
from alora.bench.serving.records import Cell, Trial, ms
from alora.bench.serving.reference import Agreement, compare, difference, merge, probabilities
from alora.bench.serving.statistics import plain, summary

UNCOMPARED = ("read", "base", "base again")  # stages in which every arm runs the base: nothing to compare


def evaluate(bench: Bench, floors: Floors) -> dict[str, Any]:
    """All cells as plain data, the null arm of every workload, and what could not be compared."""
    nulls = {name: null_interval(bench.cells, name, bench) for name in dict.fromkeys(c.workload for c in bench.cells)}
    ours = "alora" if "alora" in bench.arms else "packed"
    cells = [_cell(bench, cell, ours, nulls[cell.workload], floors) for cell in bench.cells]
    return {
        "ours": ours,
        "null": {name: interval.as_dict() for name, interval in nulls.items() if interval is not None},
        "cells": cells,
    }


def null_interval(cells: Sequence[Cell], workload: str, bench: Bench) -> Interval | None:
    """aLoRA over aLoRA in every round and cell of a workload, as one interval of 99 %."""
    ours = "alora" if "alora" in bench.arms else "packed"
    ratios = []
    for cell in cells:
        if cell.workload == workload and cell.at.get("stage") not in UNCOMPARED:
            pairs = zip(cell.of(NULL), cell.of(ours), strict=True)
            ratios += [one.seconds / other.seconds for one, other in pairs]
    return median_interval(ratios, guards.NULL_COVERAGE) if ratios else None


def _cell(bench: Bench, cell: Cell, ours: str, null: Interval | None, floors: Floors) -> dict[str, Any]:
    compared = cell.at.get("stage") not in UNCOMPARED
    found: dict[str, Any] = {
        "workload": cell.workload,
        "at": cell.at,
        "arms": {name: _figures(bench, cell, name, floors) for name in cell.arms},
        "agreement": [],
        "ratios": [],
        "samples": [trial.sample() for trial in cell.trials],
    }
    if not compared:
        return found
    checks = {name: _agreement(bench, cell, name) for name in cell.arms}
    found["agreement"] = [
        {"arm": name, **vars(entry)} for name, entries in checks.items() for entry in entries
    ]  # fmt: skip
    for name in cell.arms:
        if name not in (ours, NULL):
            found["ratios"].append(_ratio(bench, cell, name, ours, checks, null, found["arms"]))
    return found


def _figures(bench: Bench, cell: Cell, name: str, floors: Floors) -> dict[str, Any]:
    """Battery and request latencies, tokens, throughput and Python time of one arm in one cell."""
    trials = cell.of(name)
    batteries = [[ms(trial.seconds)] for trial in trials]
    requests = [[ms(answer.first) for answer in trial.burst.answers] for trial in trials]
    computed = sum(trial.burst.computed_tokens * trial.scale for trial in trials) / len(trials)
    cached = sum(a.cached_tokens * trial.scale for trial in trials for a in trial.burst.answers) / len(trials)
    seconds = sum(trial.seconds for trial in trials) / len(trials)
    verdicts = sum(len(trial.burst.answers) * trial.scale for trial in trials) / len(trials)
    found = {
        "battery_ms": plain(summary(batteries)),
        "wall_ms": round(sum(ms(trial.burst.wall * trial.scale) for trial in trials) / len(trials), 3),
        "computed_tokens": round(computed),
        "cached_tokens": round(cached),
        "kv_mib": round(computed * kv_bytes_of(floors) / 2**20, 1),
        "verdicts_per_second": round(verdicts / seconds, 1),
        "split_ms": _split(trials),
        "run": _coverage(cell, name),
    }
    if all(trial.scale == 1.0 for trial in trials):  # a part of a battery waits less for its turn
        found["first_token_ms"] = plain(summary(requests))
        found["last_token_ms"] = plain(summary([[ms(a.last) for a in t.burst.answers] for t in trials]))
    if cell.workload == "grid":
        floor = floors.of("alora" if name in (NULL, "packed") else name, cell.at["length"], cell.at["adapters"])
        found |= {"floor_ms": ms(floor), "over_floor": round(seconds / floor, 2)}
    return found


def kv_bytes_of(floors: Floors) -> int:
    """Bytes of a token's keys and values."""
    from alora.bench.serving.floor import kv_bytes

    return kv_bytes(floors.material)


def _coverage(cell: Cell, name: str) -> dict[str, int]:
    """How many different requests of a whole battery were really run, over all rounds."""
    trials = cell.of(name)
    ran = {piece for trial in trials for piece in trial.burst.pieces}
    return {"ran": len(ran), "of": round(len(trials[0].burst.pieces) * trials[0].scale)}


def _split(trials: Sequence[Trial]) -> dict[str, float | None]:
    """Mean milliseconds of a battery in the front end, in scheduler and output processor, and in the model."""
    count = len(trials)
    front = sum(trial.burst.front * trial.scale for trial in trials) / count
    whole = sum(trial.seconds for trial in trials) / count
    hosts = [trial.burst.host for trial in trials]
    if any(host is None for host in hosts):
        return {"front": ms(front), "host": None, "model": ms(whole - front)}
    host = sum((trial.burst.host or 0.0) * trial.scale for trial in trials) / count
    return {"front": ms(front), "host": ms(host), "model": ms(whole - front - host)}


def _agreement(bench: Bench, cell: Cell, name: str) -> list[Agreement]:
    """Against PEFT for sampled policies, against the packed scorer for all, and against itself in other rounds."""
    prefix = bench.conversation(cell.at["length"])
    found = []
    against, wanted = bench.references.of(name)
    moved = None if name == "base" else bench.references.moved
    if cell.workload in ("grid", "warm"):
        found.append(_over_trials(prefix, cell.of(name), wanted, against, moved))
    if name in ("alora", NULL) and "packed" in cell.arms:
        burst = cell.of("packed")[0].burst
        answers = zip(burst.pieces, probabilities(burst), strict=True)
        everyone = {(prefix, piece.place): found for piece, found in answers}
        found.append(_over_trials(prefix, cell.of(name), everyone, "the packed scorer", bench.references.moved))
    first: dict[Any, Any] = {}
    steadiness = Agreement("its own other rounds", 0, 0, 0.0)
    for trial in cell.of(name):
        for piece, probability in zip(trial.burst.pieces, probabilities(trial.burst), strict=True):
            before = first.setdefault(piece, probability)
            if before is not probability:
                same = before.index(max(before)) == probability.index(max(probability))
                gap = difference(before, probability)
                steadiness = merge(steadiness, Agreement(steadiness.against, 1, int(same), gap))
    return [*found, steadiness] if steadiness.checked else found


def _over_trials(
    prefix: tuple[int, ...], trials: Sequence[Trial], wanted: Mapping[Any, Any], against: str, moved: float | None
) -> Agreement:
    total = Agreement(against, 0, 0, 0.0, moved)
    for trial in trials:
        total = merge(total, compare(prefix, trial.burst, wanted, against, moved))
    return total


def _ratio(
    bench: Bench,
    cell: Cell,
    name: str,
    ours: str,
    checks: Mapping[str, Sequence[Agreement]],
    null: Interval | None,
    figures: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """How many times faster ours is than ``name``, or why that is not said."""
    fast, slow = cell.of(ours), cell.of(name)
    reasons = [guards.unequal_work(fast, slow), *_wrong(bench, name, checks), *_wrong(bench, ours, checks)]
    if null is None:
        reasons.append("there is no null arm beside it")
    else:
        reasons.append(guards.biased_null(null))
    reasons += [guards.below_floor(arm, figures[arm].get("over_floor")) for arm in (ours, name)]
    if cell.workload == "grid":
        shared = cell.at["length"]
        reasons += [guards.not_cold(slow, 0 if name == "lora" else shared), guards.not_cold(fast, shared)]
    if bench.engine is not None and name == "lora":
        held = 2 * cell.at.get("adapters", 1)
        reasons.append(guards.starved(bench.engine.options.slots, held))
    refused = [reason for reason in dict.fromkeys(reasons) if reason]
    ratio = paired_ratio([t.seconds for t in slow], [t.seconds for t in fast])
    tokens = [sum(t.burst.computed_tokens * t.scale for t in trials) / len(trials) for trials in (slow, fast)]
    return {
        "baseline": name,
        "ratio": None if refused else {key: round(value, 3) for key, value in ratio.as_dict().items()},
        "token_ratio": round(tokens[0] / tokens[1], 2) if tokens[1] else None,
        "refused": refused,
    }


def _wrong(bench: Bench, name: str, checks: Mapping[str, Sequence[Agreement]]) -> list[str | None]:
    entries = checks[name]
    if not entries:
        return [None if name not in ("alora", "lora") else f"{name}: its verdicts were compared with nothing"]
    found = []
    for entry in entries:
        own = entry.against == "its own other rounds"
        reason = (
            guards.unsteady_verdicts(entry.worst, bench.tolerance)
            if own
            else guards.wrong_verdicts(entry, bench.tolerance)
        )
        found.append(f"{name}: {reason}" if reason else None)
    return found
