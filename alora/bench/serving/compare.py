"""``alora bench compare A B``: two runs side by side, and which differences exceed the noise.

Two runs share no rounds, and between them the machine drifts for all arms alike. So an arm is judged beside those that
no change of ours should touch, the controls: the base alone, the packed scorer, and the stages in which every arm runs
the base. What a control did between the runs, any arm may have done by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from alora.bench.measure import Interval
from alora.bench.report import table
from alora.bench.serving.arms import NULL
from alora.bench.serving.guards import different_runs
from alora.bench.serving.marks import told_rate
from alora.bench.serving.records import BASE_STAGES
from alora.bench.serving.report import place
from alora.bench.serving.saved import load_run
from alora.bench.serving.statistics import holm, least_chance, ratio_of_medians, rearranged
from alora.errors import ConfigError

__all__ = ["Comparison", "Difference", "compare_runs", "load_run"]

FEWEST = 3  # rounds; below, a bootstrap has nothing to draw from
ALPHA = 0.05  # chance of even one false alarm in a whole comparison
CONTROLS = ("base", "packed")
_ALONE = ("lora", "packed")  # without a server these two are all there is
_FREE = ("engine", "checked", "gpu_share", "kv_gib")  # settings that change no figure
FASTER, SLOWER, NO, CONTROL = "faster", "slower", "no", "control"
TOO_FEW, NO_CONTROL = "too few rounds to tell", "no control arm to tell"

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One arm in one cell: the first run's median over the second's. Above 1: the second is faster.

    ``chance`` is that of a difference as large beyond the controls' drift, corrected for the number of rows.
    """

    cell: str
    arm: str
    one_ms: float
    other_ms: float
    ratio: Interval
    verdict: str = NO
    chance: float | None = None

    @property
    def beyond_noise(self) -> bool:
        """Whether it is larger than the controls' drift and chance explain."""
        return self.verdict in (FASTER, SLOWER)


@dataclass(frozen=True)
class Comparison:
    """All arms that both runs have. ``drift``: between which ratios the controls of a workload moved, with the null
    arm's own noise. ``remarks`` are differences between the runs themselves, ``warnings`` what is wrong with one.
    """

    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]
    ours: str
    drift: Mapping[str, tuple[float, float]]
    warnings: tuple[str, ...] = ()
    rates: tuple[tuple[str, str, str], ...] = ()  # of the open loop: arm and population, and both runs' in words

    @property
    def slower(self) -> bool:
        """Whether ours became slower beyond the noise anywhere."""
        return any(d.arm == self.ours and d.verdict == SLOWER for d in self.differences)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [asdict(d) | {"beyond_noise": d.beyond_noise} for d in self.differences]
        return {
            "differences": rows, "drift": {name: list(band) for name, band in self.drift.items()},
            "remarks": list(self.remarks), "warnings": list(self.warnings), "ours": self.ours, "slower": self.slower,
            "rates": [list(row) for row in self.rates],
        }  # fmt: skip

    def text(self) -> str:
        """For people."""
        rows = [
            [
                difference.cell,
                difference.arm,
                f"{difference.one_ms:.1f}",
                f"{difference.other_ms:.1f}",
                f"{difference.ratio.median:.3f} [{difference.ratio.low:.3f}, {difference.ratio.high:.3f}]",
                difference.verdict,
            ]
            for difference in self.differences
        ]
        heads = ["cell", "arm", "first, ms", "second, ms", "second is faster by", "beyond the noise"]
        parts = ["".join(f"WARNING: {warning}\n" for warning in self.warnings), table(heads, rows) if rows else ""]
        if self.rates:
            heads = ["open loop", "first, conversations/s", "second, conversations/s"]
            parts.append(
                f"{table(heads, self.rates)}\n\nOne search each, so no noise is known of these rates: none is judged."
            )
        bands = [f"{name} {low:.3f} to {high:.3f}" for name, (low, high) in self.drift.items()]
        if rows:
            parts.append(
                f"Controls moved between the runs by: {'; '.join(bands) or 'none in both'}. Any other arm is told only "
                f"beyond that, and where chance explains less than {ALPHA:.0%} over all rows together."
            )
        judged = sum(difference.verdict != CONTROL for difference in self.differences)
        if any(difference.verdict == TOO_FEW for difference in self.differences):
            parts.append(f"Too few rounds to tell {judged} rows: take bench.rounds={rounds_for(judged)} for both runs.")
        if self.remarks:
            parts.append("The runs differ otherwise:\n\n" + "\n".join(f"- {remark}" for remark in self.remarks))
        return "\n\n".join(part for part in parts if part) + "\n"


def rounds_for(rows: int) -> int:
    """The fewest rounds of both runs with which one of ``rows`` could be told."""
    return next(count for count in range(FEWEST, 100) if rows * least_chance(count, count) <= ALPHA or count == 99)


def compare_runs(one: Run, other: Run) -> Comparison:
    """Every arm of every cell that both runs have.

    Raises:
        ConfigError: the workloads, the base, the adapters or the clock differ, so the figures are of different work; or
            the runs share no cell, or have too few rounds to tell noise.
    """
    unlike = different_runs(_work(one), _work(other))
    if unlike:
        raise ConfigError("the two runs measured different work:\n" + "\n".join(f"  {line}" for line in unlike))
    fewest = min(run["settings"]["rounds"] for run in (one, other))
    if fewest < FEWEST:
        raise ConfigError(f"a run of {fewest} round(s) cannot tell noise; take bench.rounds={FEWEST} or more for both")
    theirs = {place(cell): cell for cell in other["cells"]}
    pairs = [(cell, theirs[place(cell)]) for cell in one["cells"] if place(cell) in theirs]
    ours = one["ours"]
    drift = {}
    for workload in dict.fromkeys(cell["workload"] for cell, _ in pairs):
        band = _drift([pair for pair in pairs if pair[0]["workload"] == workload], ours)
        if band is not None:
            drift[workload] = band
    found = [
        _difference(cell, beside, arm, arm in _controls(cell, beside, ours), drift.get(cell["workload"]))
        for cell, beside in pairs
        for arm in _shared(cell, beside)
        if arm != NULL
    ]
    rates = _rates(one, other)
    if not found and not rates:
        raise ConfigError("the two runs have no cell and no rate of the open loop in common")
    remarks = different_runs(_place(one), _place(other))
    warnings = [*_warnings(one, "the first run"), *_warnings(other, "the second run")]
    return Comparison(tuple(_judged(found, pairs)), tuple(remarks), ours, drift, tuple(warnings), rates)


def _rates(one: Run, other: Run) -> tuple[tuple[str, str, str], ...]:
    """The highest rates that both runs have searched."""
    first, second = map(_searched, (one, other))
    return tuple((name, told, second[name]) for name, told in first.items() if name in second)


def _searched(run: Run) -> dict[str, str]:
    entries = [entry for entry in run.get("open_loop", ()) if entry["kind"] == "rate"]
    return {f"{entry['arm']}, population {entry['population']}": told_rate(entry) for entry in entries}


def _shared(cell: Run, beside: Run) -> list[str]:
    return [arm for arm in cell["arms"] if arm in beside["arms"]]


def _controls(cell: Run, beside: Run, ours: str) -> list[str]:
    """Arms that no change of ours touches; standard LoRA where there is nothing else."""
    arms = [arm for arm in _shared(cell, beside) if arm != NULL]
    if cell["at"].get("stage") in BASE_STAGES:
        return arms
    return [arm for arm in arms if arm in CONTROLS and arm != ours] or [arm for arm in arms if (arm, ours) == _ALONE]


def _drift(pairs: Sequence[tuple[Run, Run]], ours: str) -> tuple[float, float] | None:
    """Between which ratios the controls of a workload lie, widened by what ours beside itself has moved."""
    moved, noise = [], 1.0
    for cell, beside in pairs:
        shared = _shared(cell, beside)
        moved += [_moved(cell, beside, arm) for arm in _controls(cell, beside, ours)]
        if NULL in shared and ours in shared:
            apart = _moved(cell, beside, NULL) / _moved(cell, beside, ours)
            noise = max(noise, apart, 1 / apart)
    return (min(moved) / noise, max(moved) * noise) if moved else None


def _moved(cell: Run, beside: Run, arm: str) -> float:
    """Geometric mean of an arm in the first run over that in the second."""
    first, second = (statistics.fmean(map(math.log, each)) for each in _times(cell, beside, arm))
    return math.exp(first - second)


def _times(cell: Run, beside: Run, arm: str) -> Iterator[list[float]]:
    return ([s["ms"] * s.get("scale", 1.0) for s in c["samples"] if s["arm"] == arm] for c in (cell, beside))


def _difference(
    cell: Run, beside: Run, arm: str, control: bool, band: tuple[float, float] | None
) -> Difference:  # fmt: skip
    first, second = _times(cell, beside, arm)
    medians = statistics.median(first), statistics.median(second)
    found = Difference(place(cell), arm, *medians, ratio_of_medians(first, second))
    if control:
        return replace(found, verdict=CONTROL)
    if band is None:
        return replace(found, verdict=NO_CONTROL)
    moved = _moved(cell, beside, arm)
    nearest = min(max(moved, band[0]), band[1])  # the drift that explains most of it
    chance = 1.0 if nearest == moved else rearranged([value / nearest for value in first], second)
    return replace(found, verdict=SLOWER if moved < nearest else FASTER if moved > nearest else NO, chance=chance)


def _judged(found: Sequence[Difference], pairs: Sequence[tuple[Run, Run]]) -> list[Difference]:
    """Verdicts after correcting for the number of rows; too few rounds say nothing, not that nothing is there."""
    places = [number for number, row in enumerate(found) if row.chance is not None]
    chances = holm([row.chance for row in found if row.chance is not None])
    cells = {place(cell): (cell, beside) for cell, beside in pairs}
    rows = list(found)
    for number, chance in zip(places, chances, strict=True):
        row = found[number]
        least = least_chance(*(len(times) for times in _times(*cells[row.cell], row.arm)))
        verdict = TOO_FEW if len(places) * least > ALPHA else row.verdict if chance <= ALPHA else NO
        rows[number] = replace(row, verdict=verdict, chance=chance)
    return rows


def _warnings(run: Run, name: str) -> list[str]:
    """What is wrong with a run as a whole."""
    found = [] if run.get("complete", True) is True else [f"{name} was interrupted; it holds a part of the cells"]
    ratios = [entry for cell in run["cells"] for entry in cell["ratios"] if entry["baseline"] != "base"]
    if ratios and all(entry["ratio"] is None for entry in ratios):
        reason = next((reason for entry in ratios for reason in entry["refused"]), "no reason given")
        found.append(f"{name} had every ratio withheld, so its figures are not to be relied on: {reason}")
    return found


def _work(run: Run) -> dict[str, Any]:
    """What decides how much is to be done, and what the seconds are."""
    serving = {f"bench.serving.{key}": value for key, value in run["settings"]["serving"].items() if key not in _FREE}
    whole = {f"bench.{key}": run["settings"][key] for key in ("rank", "seed", "threads", "battery")}
    rest = {key: run[key] for key in ("base", "adapter", "prompt", "dtype", "clock", "ours")}
    return serving | whole | rest | {"engine": run["engine"]["name"]}


def _place(run: Run) -> dict[str, Any]:
    """Where and with what it ran."""
    environment = run["environment"]
    keys = sorted(set(environment) - {"command"})
    return {key: environment[key] for key in keys} | {"device": run["device"], "rounds": run["settings"]["rounds"]}
