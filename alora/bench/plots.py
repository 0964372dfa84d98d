"""Plots of a record: latency, speed-up, and p95 under load. matplotlib is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alora.bench.record import Record
from alora.bench.trials import AA, Cell

COLOURS = {"lora": "#b5442e", "alora": "#1f6fb2", "base": "#7a7a7a", "reader": "#c8a02c", "packed": "#3d8f5f"}


def write_plots(record: Record, folder: Path) -> list[Path]:
    """Write every plot that the record has figures for; empty where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from matplotlib.figure import Figure

    plots: dict[str, Callable[[Any, Record], bool]] = {"latency": latency, "speed_up": speed_up, "open_loop": open_loop}
    written = []
    for name, draw in plots.items():
        axes = (figure := Figure(figsize=(6.4, 4.0), layout="constrained")).subplots()
        if draw(axes, record):
            axes.legend(frameon=False, fontsize=7)
            figure.savefig(folder / f"{name}.png", dpi=110)
            written.append(folder / f"{name}.png")
    return written


def _grid(record: Record) -> list[Cell]:
    return sorted(
        (c for c in record.cells if c.workload == "grid"), key=lambda c: (c.size("tokens"), c.size("policies"))
    )


def latency(axes: Any, record: Record) -> bool:
    """Milliseconds of a burst against the number of policies, one line per system, for the longest conversation."""
    cells = _grid(record)
    cells = [cell for cell in cells if cell.at["tokens"] == cells[-1].at["tokens"]]
    for name in dict.fromkeys(name for cell in cells for name in cell.systems if name != AA):
        there = [cell for cell in cells if name in cell.systems]
        found = [cell.whole_ms(name) for cell in there]
        spread = [[one.value - one.low for one in found], [one.high - one.value for one in found]]
        label = f"{name} (~ extrapolated)" if any(cell.part(name) for cell in there) else name
        x, y = [cell.size("policies") for cell in there], [one.value for one in found]
        axes.errorbar(x, y, yerr=spread, label=label, color=COLOURS.get(name), marker="o", markersize=4, capsize=3)
    axes.set(xscale="log", yscale="log", xlabel="policies on one conversation", ylabel="all verdicts back, ms")
    axes.set_title(f"{cells[-1].at['tokens']} tokens, empty cache" if cells else "")
    return len(cells) > 1


def speed_up(axes: Any, record: Record) -> bool:
    """Times faster than standard LoRA, or than PEFT's training, against the number of policies; dashed: arithmetic."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for cell in _grid(record):
        if (found := cell.ratio("lora")) and found.ratio:
            row = cell.size("policies"), found.ratio.value, found.arithmetic or 0.0
            lines.setdefault(f"{cell.mark('lora')}over LoRA, {cell.at['tokens']} tokens", []).append(row)
    for cell in record.cells:
        for found in (
            one for one in cell.ratios if cell.workload == "training" and one.baseline == "peft" and one.ratio
        ):
            assert found.ratio is not None
            row = int(found.ours.partition("=")[2]), found.ratio.value, found.arithmetic or 0.0
            lines.setdefault(f"over PEFT, prefix {cell.at['prefix']}", []).append(row)
    for label, rows in lines.items():
        x, measured, allowed = zip(*rows, strict=True)
        (line,) = axes.plot(x, measured, marker="o", label=label)
        axes.plot(x, allowed, linestyle="--", linewidth=0.8, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="policies", ylabel="times faster")
    return bool(lines)


def open_loop(axes: Any, record: Record) -> bool:
    """p95 against the offered rate, one line per system and population."""
    for entry in record.load:
        rates = sorted((one for one in entry.rates if one.rate and one.ms), key=lambda one: one.rate)
        if not rates:
            continue
        label = f"{entry.system}, population {entry.population}{', withheld' if entry.refused else ''}"
        alone = entry.kind == "population"
        style = {"marker": "s" if alone else "o", "fillstyle": "none" if alone else "full"}
        colour = COLOURS.get(entry.system)
        axes.plot([r.rate for r in rates], [r.percentile(95) for r in rates], color=colour, label=label, **style)
        behind = [one for one in rates if not (one.sustained and one.complete)]
        axes.plot([r.rate for r in behind], [r.percentile(95) for r in behind], "kx")
    if record.load:
        axes.axhline(record.load[0].target_ms, color="black", linewidth=0.8, linestyle=":", label="target")
    axes.set(xscale="log", yscale="log", xlabel="conversations offered a second", ylabel="p95, ms")
    axes.set_title("x: not sustained, or given up")
    return len(axes.lines) > 1
