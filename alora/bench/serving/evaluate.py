"""From samples to figures: intervals, agreement, ratios where no guard objects, and the distance to the floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alora.bench.measure import Interval, paired_ratio
from alora.bench.serving import guards
from alora.bench.serving.arms import NULL, PackedArm, PeftLoraArm
from alora.bench.serving.context import Bench
from alora.bench.serving.floor import Floors, kv_bytes
from alora.bench.serving.records import BASE_STAGES, Cell, Trial, ms
from alora.bench.serving.reference import (
    Agreement,
    Probabilities,
    alike,
    compare,
    difference,
    merge,
    of_scores,
    prefix_of,
    probabilities,
    stage_of,
)
from alora.bench.serving.statistics import mean_ratio, plain, summary

OWN = "its own other rounds"


@dataclass(frozen=True)
class Null:
    """aLoRA over aLoRA in one workload, one ratio a round; or why there is none."""

    interval: Interval | None
    rounds: int
    reason: str | None

    def objection(self) -> str | None:
        """Why no ratio of this workload can be told."""
        return self.reason if self.interval is None else guards.biased_null(self.interval, self.rounds)


def evaluate(bench: Bench, floors: Floors) -> dict[str, Any]:
    """All cells as plain data, the null arm of every workload, and what could not be compared."""
    ours = ours_of(bench)
    nulls = {name: null_of(bench.cells, name, ours) for name in dict.fromkeys(c.workload for c in bench.cells)}
    return {
        "ours": ours,
        "null": {
            name: null.interval.as_dict() | {"rounds": null.rounds}
            for name, null in nulls.items() if null.interval is not None
        },
        "cells": [_cell(bench, cell, ours, nulls[cell.workload], floors) for cell in bench.cells],
    }  # fmt: skip


def judge_open_loop(bench: Bench, entries: Sequence[dict[str, Any]]) -> None:
    """Put beside each entry of the open loop how its arm's verdicts agree with their reference, as far as that was
    asked, and all of them with the arm's first answer to the same request; and what a guard has to say about that.
    """
    first: dict[Any, Any] = {}
    for entry in entries:
        arm = entry["arm"]
        against, wanted, moved = bench.references.of(arm)
        total, steadiness = Agreement(against, 0, 0, 0.0, moved), Agreement(OWN, 0, 0, 0.0)
        for verdict in bench.verdicts:
            if (verdict.arm, verdict.kind, verdict.population) != (arm, entry["kind"], entry["population"]):
                continue
            key, found = (verdict.prefix_ids, verdict.place), of_scores(verdict.scores)
            if key in wanted:
                total = merge(total, _one(against, found, wanted[key], moved))
            before = first.setdefault((arm, key), found)
            if before is not found:  # at another rate, among other requests
                steadiness = merge(steadiness, _one(OWN, found, before))
        measured = entry["kind"] == "rate" or entry["probe"] is not None
        entry["agreement"] = [{"arm": arm, **vars(one)} for one in (total, steadiness) if one.checked]
        entry["refused"] = [reason for reason in _wrong(bench, arm, (total, steadiness)) if measured and reason]


def _one(against: str, found: Probabilities, right: Probabilities, moved: float | None = None) -> Agreement:
    return Agreement(against, 1, int(alike(found, right)), difference(found, right), moved)


def ours_of(bench: Bench) -> str:
    """The arm that the others are compared with."""
    return "alora" if "alora" in bench.arms else "packed"


def null_of(cells: Sequence[Cell], workload: str, ours: str) -> Null:
    """The null arm over ours: one ratio a round, of the seconds of all cells together.

    What the machine does in a round, it does to all cells of it: they are one measurement, and not as many as cells.
    """
    pairs: list[dict[int, tuple[float, float]]] = []
    held = [c for c in cells if c.workload == workload and c.at.get("stage") not in BASE_STAGES]
    for cell in held:
        mine, other = cell.of(ours), cell.of(NULL)
        if not mine or not other:
            return Null(None, 0, "there is no null arm beside it")
        reason = guards.missing_rounds(mine, other, "the null arm")
        if reason:
            return Null(None, 0, reason)
        pairs.append({one.round: (one.seconds, two.seconds) for one, two in zip(other, mine, strict=True)})
    shared = sorted(set.intersection(*map(set, pairs))) if pairs else []  # a cell that was stopped has fewer
    if len(shared) < 2:
        return Null(None, len(shared), "there is no null arm of two rounds or more beside it")
    ratios = [sum(cell[n][0] for cell in pairs) / sum(cell[n][1] for cell in pairs) for n in shared]
    return Null(mean_ratio(ratios, guards.NULL_COVERAGE), len(ratios), None)


def _cell(bench: Bench, cell: Cell, ours: str, null: Null, floors: Floors) -> dict[str, Any]:
    compared = cell.at.get("stage") not in BASE_STAGES
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
            reasons = _objections(bench, cell, name, ours, checks, found["arms"])
            found["ratios"].append(_ratio(cell, name, ours, [*reasons, null.objection()]))
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
        "kv_mib": round(computed * kv_bytes(floors.material) / 2**20, 1),
        "verdicts_per_second": round(verdicts / seconds, 1),
        "split_ms": _split(trials),
        "run": _coverage(cell, name),
    }
    if all(trial.scale == 1.0 for trial in trials):  # a part of a battery waits less for its turn
        found["first_token_ms"] = plain(summary(requests))
        found["last_token_ms"] = plain(summary([[ms(a.last) for a in t.burst.answers] for t in trials]))
    floor = _floor(cell, name, floors, _keeps_none(bench, name))
    if floor is not None:
        found |= {"floor_ms": ms(floor), "over_floor": round(seconds / floor, 4)}
    return found


def _floor(cell: Cell, name: str, floors: Floors, keeps_none: bool) -> float | None:
    """Least seconds of an arm behind all that it may have found in a cache."""
    at = cell.at
    if cell.base_alone:
        return None
    length = at["length"] + at.get("tokens", 0)
    arm, held = "alora" if name in (NULL, "packed") else name, 0 if keeps_none else cell.left(name)
    cached = length if held == at["length"] else held  # what the base said is there with what it had read
    rest = 1 if at.get("stage") == "again" else None  # of a suffix that was read before, its last token
    return floors.of(arm, length, at.get("adapters", 1), cached, rest)


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
    """Against PEFT for sampled requests, against the packed scorer for all, and against itself in other rounds."""
    against, wanted, moved = bench.references.of(name)
    found = [_over_trials(bench, cell, name, wanted, against, moved)]
    if name in ("alora", NULL) and "packed" in cell.arms:
        prefix = bench.conversation(cell.at["length"])
        burst = cell.of("packed")[0].burst
        answers = zip(burst.pieces, probabilities(burst), strict=True)
        everyone = {(prefix, piece.place): answer for piece, answer in answers}
        found.append(_over_trials(bench, cell, name, everyone, "the packed scorer", moved))
    first: dict[Any, Any] = {}
    steadiness = Agreement(OWN, 0, 0, 0.0)
    for trial in cell.of(name):
        for piece, probability in zip(trial.burst.pieces, probabilities(trial.burst), strict=True):
            before = first.setdefault(piece, probability)
            if before is not probability:
                steadiness = merge(steadiness, _one(OWN, probability, before))
    return [*found, steadiness] if steadiness.checked else found


def _over_trials(
    bench: Bench, cell: Cell, name: str, wanted: Mapping[Any, Any], against: str, moved: float | None
) -> Agreement:
    total = Agreement(against, 0, 0, 0.0, moved)
    for trial in cell.of(name):
        total = merge(total, compare(prefix_of(bench, cell, trial), trial.burst, wanted, against, moved))
    return total


def _ratio(cell: Cell, name: str, ours: str, reasons: Sequence[str | None]) -> dict[str, Any]:
    """How many times faster ours is than ``name``, or why that is not said."""
    refused = [reason for reason in dict.fromkeys(reasons) if reason]
    fast, slow = cell.of(ours), cell.of(name)
    tokens = [
        sum(t.burst.computed_tokens * t.scale for t in trials) / max(1, len(trials)) for trials in (slow, fast)
    ]  # fmt: skip
    ratio = None
    if not refused:
        interval = paired_ratio([t.seconds for t in slow], [t.seconds for t in fast])
        ratio = {key: round(value, 3) for key, value in interval.as_dict().items()}
    return {
        "baseline": name,
        "ratio": ratio,
        "token_ratio": round(tokens[0] / tokens[1], 2) if tokens[1] else None,
        "refused": refused,
    }


def _objections(
    bench: Bench,
    cell: Cell,
    name: str,
    ours: str,
    checks: Mapping[str, Sequence[Agreement]],
    figures: Mapping[str, Mapping[str, Any]],
) -> list[str | None]:
    """What every guard has to say about ours beside ``name`` in a cell."""
    fast, slow = cell.of(ours), cell.of(name)
    if not fast:
        return [f"{ours} does not run this workload"]
    reasons = [guards.unequal_work(fast, slow), guards.missing_rounds(fast, slow, name)]
    for arm in (name, ours):
        reasons += _wrong(bench, arm, checks[arm])
        reasons.append(guards.below_floor(arm, figures[arm].get("over_floor")))
        reasons.append(_warm(bench, cell, arm))
    if bench.engine is not None and name == "lora":
        held = 2 * cell.at.get("adapters", 1)
        reasons.append(guards.starved(bench.engine.options.slots, held))
    return reasons


def _keeps_none(bench: Bench, arm: str) -> bool:
    """Whether an arm has no cache between calls: those that run in this process."""
    return isinstance(bench.arms[arm], PackedArm | PeftLoraArm)


def _warm(bench: Bench, cell: Cell, arm: str) -> str | None:
    """A workload begins on an empty cache: its cold batteries, or the stage before the one that is compared."""
    if cell.cold:
        return guards.not_cold(cell.of(arm), 0 if arm == "lora" else cell.at["length"])
    if _keeps_none(bench, arm):
        return None
    gone = guards.emptied(cell.of(arm), cell.left(arm))
    if gone or cell.workload not in ("warm", "pipeline"):
        return f"{arm}: {gone}" if gone else None
    before = stage_of(bench.cells, cell, "read" if cell.workload == "warm" else "base")
    if before is None or not before.of(arm):
        return f"{arm}: the stage before this one was not measured, so nobody knows what the cache held"
    return guards.not_cold(before.of(arm), 0)


def _wrong(bench: Bench, name: str, entries: Sequence[Agreement]) -> list[str | None]:
    """Verdicts of an arm that differ, change, or were compared with nothing but themselves."""
    found = []
    for entry in entries:
        if entry.against == OWN:
            reason = guards.unsteady_verdicts(entry.worst, bench.tolerance)
        else:
            reason = guards.wrong_verdicts(entry, bench.tolerance)
        found.append(f"{name}: {reason}" if reason else None)
    return found
