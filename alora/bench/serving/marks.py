"""What a reader must be told beside a figure: that it was extrapolated, is a bound only, or was not measured at all.

Everything here reads the plain data of ``bench.json``, so that report, plots and notebook say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXTRAPOLATED = "~"


def mark(cell: Mapping[str, Any], arm: str) -> str:
    """``~`` where a round of ``arm`` ran a part of the battery and counts as the whole, else nothing."""
    return EXTRAPOLATED if any(s["arm"] == arm and "scale" in s for s in cell["samples"]) else ""


def rate_bounds(entry: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The highest rate of a search that held its target and the lowest that did not; None where there is no such."""
    loaded = [one for one in entry["probes"] if one["rate"] > 0]
    held = [one["rate"] for one in loaded if _holds(one, entry["target_ms"])]
    failed = [one["rate"] for one in loaded if not _holds(one, entry["target_ms"])]
    return max(held, default=None), min(failed, default=None)


def rate_text(entry: Mapping[str, Any]) -> str:
    """The highest rate in words: between two tried rates, or no more than a bound where no edge was found."""
    held, failed = rate_bounds(entry)
    if held is None and failed is None:
        alone = any(_holds(one, entry["target_ms"]) for one in entry["probes"])
        return "stopped before any was tried" if alone else "none, not even one after another"
    if held is None:
        return f"< {failed:.2f}"
    return f">= {held:.2f}" if failed is None else f"{held:.2f} to {failed:.2f}"


def told_rate(entry: Mapping[str, Any]) -> str:
    """:func:`rate_text`, unless the arm's verdicts forbid it."""
    return "withheld" if entry.get("refused") else rate_text(entry)


def kept_up(one: Mapping[str, Any]) -> bool:
    """Whether a tried rate was answered about as fast as it came; older files do not say, so they did."""
    return bool(one.get("kept_up", True))


def _holds(one: Mapping[str, Any], target: float) -> bool:
    return bool(one["complete"] and kept_up(one) and one["figures"] and one["figures"]["p95"]["value"] < target)


def spent_text(results: Mapping[str, Any]) -> str:
    """How long the run took, where it says so."""
    spent = results.get("spent")
    if spent is None:
        return ""
    totals = (round(spent[name]) for name in ("wall_seconds", "cpu_seconds"))
    wall, cpu = (f"{total // 60} min {total % 60} s" for total in totals)
    return f" took {wall} by the wall and {cpu} of CPU time, from making the base to the last figure."


def coverage_text(coverages: Sequence[float]) -> str:
    """Chances in whole per cent, each once, from the lowest."""
    return " or ".join(f"{percent} %" for percent in sorted({round(100 * value) for value in coverages}))


def range_coverage(rounds: int) -> float:
    """Chance that the smallest and the largest of ``rounds`` independent values hold the true median between them."""
    return 1 - 0.5 ** (rounds - 1)
