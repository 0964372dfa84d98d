"""``alora bench compare A B``: two runs side by side, and which differences exceed the noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alora.bench.measure import Interval
from alora.bench.report import table
from alora.bench.serving.arms import NULL
from alora.bench.serving.guards import different_runs
from alora.bench.serving.report import place
from alora.bench.serving.statistics import ratio_of_medians
from alora.errors import ConfigError

FEWEST = 3  # rounds; below, a bootstrap has nothing to draw from
_FREE = ("engine", "checked", "gpu_share", "kv_gib")  # settings that change no figure


@dataclass(frozen=True)
class Difference:
    """One arm in one cell: the first run's median over the second's. Above 1: the second is faster."""

    cell: str
    arm: str
    one_ms: float
    other_ms: float
    ratio: Interval

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval of the ratio leaves 1 out."""
        return not self.ratio.contains(1.0)


@dataclass(frozen=True)
class Comparison:
    """All arms that both runs have. ``remarks`` are differences between the runs themselves."""

    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]
    ours: str

    @property
    def slower(self) -> bool:
        """Whether ours became slower beyond the noise anywhere."""
        return any(d.arm == self.ours and d.beyond_noise and d.ratio.median < 1 for d in self.differences)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [asdict(d) | {"beyond_noise": d.beyond_noise} for d in self.differences]
        return {"differences": rows, "remarks": list(self.remarks), "ours": self.ours, "slower": self.slower}

    def text(self) -> str:
        """For people."""
        rows = [
            [
                difference.cell,
                difference.arm,
                f"{difference.one_ms:.1f}",
                f"{difference.other_ms:.1f}",
                f"{difference.ratio.median:.3f} [{difference.ratio.low:.3f}, {difference.ratio.high:.3f}]",
                _verdict(difference),
            ]
            for difference in self.differences
        ]
        heads = ["cell", "arm", "first, ms", "second, ms", "second is faster by", "beyond the noise"]
        remarks = "".join(f"- {remark}\n" for remark in self.remarks)
        return table(heads, rows) + (f"\n\nThe runs differ otherwise:\n\n{remarks}" if remarks else "\n")


def _verdict(difference: Difference) -> str:
    if not difference.beyond_noise:
        return "no"
    return "faster" if difference.ratio.median > 1 else "slower"


def load_run(path: Path) -> dict[str, Any]:
    """Read a ``bench.json`` of the serving benchmark, or the folder that holds one.

    Raises:
        ConfigError: it is not there, not readable, or of another benchmark.
    """
    file = path / "bench.json" if path.is_dir() else path
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: no bench.json that can be read ({error})") from error
    if not isinstance(run, dict) or run.get("benchmark") != "serving":
        raise ConfigError(f"{file} is not a run of alora bench serving; give two that are")
    return run


def compare_runs(one: Mapping[str, Any], other: Mapping[str, Any]) -> Comparison:
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
    found = []
    for cell in one["cells"]:
        beside = theirs.get(place(cell))
        if beside is not None:
            arms = [arm for arm in cell["arms"] if arm in beside["arms"] and arm != NULL]
            found += [_difference(cell, beside, arm) for arm in arms]
    if not found:
        raise ConfigError("the two runs have no cell in common")
    return Comparison(tuple(found), tuple(different_runs(_place(one), _place(other))), one["ours"])


def _difference(cell: Mapping[str, Any], beside: Mapping[str, Any], arm: str) -> Difference:
    first, second = ([s["ms"] * s.get("scale", 1.0) for s in c["samples"] if s["arm"] == arm] for c in (cell, beside))
    ratio = ratio_of_medians(first, second)
    one, two = (c["arms"][arm]["battery_ms"]["p50"]["value"] for c in (cell, beside))
    return Difference(place(cell), arm, one, two, ratio)


def _work(run: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how much is to be done, and what the seconds are."""
    serving = {f"bench.serving.{key}": value for key, value in run["settings"]["serving"].items() if key not in _FREE}
    whole = {f"bench.{key}": run["settings"][key] for key in ("rank", "seed", "threads", "battery")}
    rest = {key: run[key] for key in ("base", "adapter", "prompt", "dtype", "clock")}
    return serving | whole | rest | {"engine": run["engine"]["name"]}


def _place(run: Mapping[str, Any]) -> dict[str, Any]:
    """Where and with what it ran."""
    environment = run["environment"]
    keys = sorted(set(environment) - {"command"})
    return {key: environment[key] for key in keys} | {"device": run["device"], "rounds": run["settings"]["rounds"]}
