"""Plots of one run: latency against length and against adapters, speed-up, cache hits, and where the time goes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from alora.bench.serving.arms import NULL
from alora.bench.serving.marks import kept_up, mark

Cells = Sequence[Mapping[str, Any]]
COLOURS = {"lora": "#b5442e", "alora": "#1f6fb2", "base": "#7a7a7a", "packed": "#3d8f5f"}
_SIZE = (6.4, 4.0)


def write_plots(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every plot that the results have samples for; empty where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    grid = [cell for cell in results["cells"] if cell["workload"] == "grid"]
    plans: list[tuple[str, Callable[[Any, Cells], bool], Cells]] = [
        ("latency_by_length", _by_length, grid),
        ("latency_by_adapters", _by_adapters, grid),
        ("speed_up", _speed_up, grid),
        ("cache_hits", _cache_hits, results["cells"]),
        ("time_split", _time_split, results["cells"]),
        ("conversation", _conversation, [cell for cell in results["cells"] if cell["workload"] == "conversation"]),
        ("open_loop", _open_loop, results["open_loop"]),
    ]
    written = []
    for name, draw, cells in plans:
        figure, axes = pyplot.subplots(figsize=_SIZE, layout="constrained")
        if cells and draw(axes, cells):
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=110)
            written.append(path)
        pyplot.close(figure)
    return written


def _lines(axes: Any, cells: Cells, key: str) -> bool:
    """One line per arm with its bootstrap interval."""
    arms = [name for name in dict.fromkeys(a for cell in cells for a in cell["arms"]) if name != NULL]
    for name in arms:
        there = sorted((cell for cell in cells if name in cell["arms"]), key=lambda cell: cell["at"][key])
        middle = [cell["arms"][name]["battery_ms"]["p50"] for cell in there]
        x, y = [cell["at"][key] for cell in there], [entry["value"] for entry in middle]
        spread = [[e["value"] - e["low"] for e in middle], [e["high"] - e["value"] for e in middle]]
        part = any(mark(cell, name) for cell in there)
        label = f"{name} (~ extrapolated)" if part else name
        axes.errorbar(x, y, yerr=spread, label=label, color=COLOURS.get(name), marker="o", markersize=4, capsize=3)
    axes.set_yscale("log")
    axes.set_ylabel("all verdicts back, ms")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    return len({cell["at"][key] for cell in cells}) > 1


def _by_length(axes: Any, cells: Cells) -> bool:
    most = max(cell["at"]["adapters"] for cell in cells)
    axes.set_xlabel("tokens of the conversation")
    axes.set_title(f"{most} adapters, empty cache")
    return _lines(axes, [cell for cell in cells if cell["at"]["adapters"] == most], "length")


def _by_adapters(axes: Any, cells: Cells) -> bool:
    counts: dict[int, int] = {}
    for cell in cells:
        counts[cell["at"]["length"]] = counts.get(cell["at"]["length"], 0) + 1
    length = max(counts, key=lambda key: counts[key])
    axes.set_xlabel("adapters on one conversation")
    axes.set_title(f"{length} tokens, empty cache")
    return _lines(axes, [cell for cell in cells if cell["at"]["length"] == length], "adapters")


def _speed_up(axes: Any, cells: Cells) -> bool:
    """Heat map of the ratio to standard LoRA; a withheld or unmeasured cell stays empty."""
    lengths = sorted({cell["at"]["length"] for cell in cells})
    counts = sorted({cell["at"]["adapters"] for cell in cells})
    values = [[float("nan")] * len(lengths) for _ in counts]
    told: dict[tuple[int, int], str] = {}
    for cell in cells:
        entry = next((entry for entry in cell["ratios"] if entry["baseline"] == "lora" and entry["ratio"]), None)
        if entry is not None:
            row, column = counts.index(cell["at"]["adapters"]), lengths.index(cell["at"]["length"])
            values[row][column] = entry["ratio"]["median"]
            told[row, column] = f"{mark(cell, 'lora')}{entry['ratio']['median']:.1f}x"
    shades = axes.imshow(values, cmap="YlGn", origin="lower", aspect="auto", vmin=0.0)
    for (row, column), text in told.items():
        dark = shades.norm(values[row][column]) > 0.75  # where white stands out more than black
        axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_yticks(range(len(counts)), [str(count) for count in counts])
    axes.set_xlabel("tokens of the conversation")
    axes.set_ylabel("adapters")
    extrapolated = "; ~ extrapolated" if any(mark(cell, "lora") for cell in cells) else ""
    axes.set_title(f"times faster than standard LoRA, empty cache{extrapolated}")
    return any(value == value for row in values for value in row)


def _cache_hits(axes: Any, cells: Cells) -> bool:
    """Share of prompt tokens that the engine found in its cache."""
    found: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell["at"].get("stage") in ("read", "base", "base again"):
            continue
        label = f"{cell['workload']}\n" + " x ".join(str(value) for value in cell["at"].values())
        for name in ("lora", "alora", "base"):
            entry = cell["arms"].get(name)
            if entry is not None:
                total = entry["computed_tokens"] + entry["cached_tokens"]
                found.setdefault(label, {})[name] = entry["cached_tokens"] / total if total else 0.0
    arms = [name for name in ("lora", "alora", "base") if any(name in shares for shares in found.values())]
    for number, name in enumerate(arms):
        places = [place + (number - 1) * 0.27 for place in range(len(found))]
        axes.bar(places, [shares.get(name, 0.0) for shares in found.values()], 0.25, label=name, color=COLOURS[name])
    axes.set_xticks(range(len(found)), list(found), fontsize=5)
    axes.set_ylabel("share of prompt tokens from the cache")
    axes.legend(frameon=False)
    return bool(arms)


def _time_split(axes: Any, cells: Cells) -> bool:
    """aLoRA's milliseconds where the conversation is read first: front end, prefill, suffixes."""
    read = {cell["at"]["length"]: cell for cell in cells if cell["at"].get("stage") == "read"}
    rest = {cell["at"]["length"]: cell for cell in cells if cell["at"].get("stage") == "warm"}
    lengths = [length for length in sorted(read) if length in rest and "alora" in read[length]["arms"]]
    if not lengths:
        return False
    splits = [rest[length]["arms"]["alora"]["split_ms"] for length in lengths]
    parts = {
        "front end": [split["front"] for split in splits],
        "scheduler and outputs": [split["host"] or 0.0 for split in splits],
        "prefill of the conversation": [read[n]["arms"]["alora"]["battery_ms"]["mean"]["value"] for n in lengths],
        "suffixes": [split["model"] for split in splits],
    }
    bottom = [0.0] * len(lengths)
    for name, values in parts.items():
        axes.bar([str(length) for length in lengths], values, 0.5, bottom=bottom, label=name)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    axes.set_xlabel("tokens of the conversation")
    axes.set_ylabel("ms of an aLoRA battery")
    axes.set_title(f"{rest[lengths[0]]['at']['adapters']} adapters")
    axes.legend(frameon=False)
    return True


def _conversation(axes: Any, cells: Cells) -> bool:
    axes.set_xlabel("turn")
    axes.set_title(f"{cells[0]['at']['adapters']} adapters at every turn, cache kept")
    return _lines(axes, cells, "turn")


def _open_loop(axes: Any, entries: Cells) -> bool:
    """p95 against the offered rate, one line per arm and population."""
    for entry in entries:
        probes = entry["probes"] if entry["kind"] == "rate" else [entry["probe"]]
        probes = sorted((one for one in probes if one and one["rate"] and one["figures"]), key=lambda one: one["rate"])
        if not probes:
            continue
        colour, alone = COLOURS.get(entry["arm"]), entry["kind"] == "population"
        label = f"{entry['arm']}, population {entry['population']}{', half the rate that held' if alone else ''}"
        label += ", withheld" if entry.get("refused") else ""
        style = {"marker": "s" if alone else "o", "fillstyle": "none" if alone else "full"}
        axes.plot(*_points(probes), color=colour, label=label, **style)
        behind = [one for one in probes if not kept_up(one)]
        axes.plot(*_points(behind), color="black", marker="x", linestyle="none")
        given_up = [one for one in probes if not one["complete"]]
        axes.plot(*_points(given_up), color=colour, marker="^", linestyle="none")
    axes.axhline(entries[0]["target_ms"], color="black", linewidth=0.8, linestyle=":", label="target")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title("x: fell behind; triangle: given up")
    axes.set_xlabel("conversations that arrive in a second")
    axes.set_ylabel("p95 until all verdicts are back, ms")
    axes.legend(frameon=False, fontsize=7)
    return len(axes.lines) > 1


def _points(probes: Cells) -> tuple[list[float], list[float]]:
    return [one["rate"] for one in probes], [one["figures"]["p95"]["value"] for one in probes]
