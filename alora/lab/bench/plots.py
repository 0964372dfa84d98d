"""Plots of a record: latency, speed-up, and p95 under load. matplotlib is optional."""

import importlib.util
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alora.lab.bench.intervals import Measured
from alora.lab.bench.record import Record
from alora.lab.bench.trials import AA

COLOURS = {"lora": "#b5442e", "alora": "#1f6fb2", "base": "#7a7a7a", "reader": "#c8a02c", "packed": "#3d8f5f"}
PICTURES = ("latency.png", "speed_up.png", "open_loop.png")


def write_plots(record: Record, folder: Path) -> list[Path]:
    """Write every plot that the record has figures for; empty where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from matplotlib import figure, ticker  # optional

    written = []
    for name, draw in zip(PICTURES, (latency, speed_up, open_loop), strict=True):
        axes = (page := figure.Figure(figsize=(6.4, 4.0), layout="constrained")).subplots()
        if draw(axes, record):
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):  # plain numbers, at 1, 2 and 5 of every decade
                axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
            axes.legend(frameon=False, fontsize=7)
            written.append(folder / name)
            page.savefig(written[-1], dpi=110)
    return written


def latency(axes: Any, record: Record) -> bool:
    """Milliseconds of a burst against the number of policies, for the longest conversation with two such numbers."""
    grid = sorted((cell for cell in record.cells if cell.workload == "grid"), key=lambda cell: cell.size("policies"))
    lengths = Counter(cell.size("tokens") for cell in grid)
    longest = max((tokens for tokens, count in lengths.items() if count > 1), default=0)
    cells = [cell for cell in grid if cell.at["tokens"] == longest]
    for name in dict.fromkeys(name for cell in cells for name in cell.systems if name != AA):
        there = [cell for cell in cells if name in cell.systems]
        label = f"{name} (~ extrapolated)" if any(cell.mark(name) for cell in there) else name
        x, times = [cell.size("policies") for cell in there], [cell.whole_ms(name) for cell in there]
        _intervals(axes, x, times, label, COLOURS.get(name))
    axes.set(xlabel="policies on one conversation", ylabel=f"{longest} tokens, empty cache: all verdicts back, ms")
    return bool(cells)


def _intervals(axes: Any, x: Sequence[int], y: Sequence[Measured], label: str, colour: str | None = None) -> Any:
    spread = [[one.value - one.low for one in y], [one.high - one.value for one in y]]
    style = {"marker": "o", "markersize": 4, "capsize": 3, "color": colour}
    return axes.errorbar(x, [one.value for one in y], yerr=spread, label=label, **style)


def speed_up(axes: Any, record: Record) -> bool:
    """Times faster than standard LoRA, or than PEFT's training, against the number of policies; dashed: arithmetic."""
    lines: dict[str, list[tuple[int, Measured, float]]] = {}
    parts: set[str] = set()
    for cell in record.cells:
        for one in cell.ratios:
            if one.ratio and one.baseline == "lora" and cell.workload == "grid":
                label, policies = f"over LoRA, {cell.at['tokens']} tokens", cell.size("policies")
                parts |= {label} if cell.mark("lora") else set()
            elif one.ratio and cell.is_headline(one):
                label, policies = f"over PEFT, prefix {cell.at['prefix']}", int(one.ours.partition("=")[2])
            else:
                continue
            lines.setdefault(label, []).append((policies, one.ratio, one.arithmetic or math.nan))
    for label, rows in lines.items():
        x, measured, allowed = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
        mark = " (~ extrapolated)" if label in parts else ""
        drawn = _intervals(axes, x, measured, label + mark)
        axes.plot(x, allowed, linestyle="--", linewidth=0.8, color=drawn.lines[0].get_color())
    axes.set(xlabel="policies", ylabel="times faster; dashed: arithmetic")
    return bool(lines)


def open_loop(axes: Any, record: Record) -> bool:
    """p95 against the offered rate, one line per system and population; x: not sustained."""
    for entry in record.load:
        rates = sorted((one for one in entry.rates if one.rate and one.ms), key=lambda one: one.rate)
        if rates:
            label = f"{entry.system}, population {entry.population}{', withheld' if entry.refused else ''}"
            style = {"marker": "s" if entry.question == "population" else "o", "color": COLOURS.get(entry.system)}
            axes.plot([one.rate for one in rates], [one.percentile(95) for one in rates], label=label, **style)
            behind = [one for one in rates if not one.sustained]
            axes.plot([one.rate for one in behind], [one.percentile(95) for one in behind], "kx")
    if record.load:
        axes.axhline(record.load[0].target_ms, color="black", linewidth=0.8, linestyle=":", label="target")
    axes.set(xlabel="conversations offered a second; x: not sustained", ylabel="p95, ms")
    return len(axes.lines) > 1
