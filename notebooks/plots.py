"""The notebooks' figures of what was measured.

Every function takes plain numbers and returns a ``matplotlib.figure.Figure``; nothing is read, computed anew or kept in
a global state. ``pip install 'alora-toolkit[plots]'`` brings matplotlib.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from alora.evaluation.metrics import CALIBRATION_BINS, Flags, Floats, reliability_points, roc_points

MOST_SITES = 10  # rows of a heat map
DPI = 80
_GREY = "0.4"


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its interval; equal to the value where there is none."""

    value: float
    low: float
    high: float


def roc_figure(methods: Mapping[str, tuple[Flags, Floats]], title: str = "") -> Figure:
    """ROC curves: method → (positive rows, their scores). The part below 10 % false positives stands next to it."""
    figure = _figure(8.0, 3.6)
    whole, left = figure.subplots(1, 2)
    for name, (positive_N, score_N) in methods.items():
        alarms, hits = roc_points(positive_N, score_N)
        for axes in (whole, left):
            axes.plot(alarms, hits, label=name, linewidth=1.4, drawstyle="steps-post")
    whole.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    whole.legend(fontsize="small", loc="lower right")
    left.set_xlim(-0.002, 0.1)
    _label(whole, title, "false positive rate", "recall")
    _label(left, "below 10 % false positives", "false positive rate", "")
    return figure


def calibration_figure(methods: Mapping[str, tuple[Flags, Floats]], title: str = "") -> Figure:
    """Reliability: method → (positive rows, calibrated probabilities), in the bins that the ECE is computed in."""
    figure = _figure(8.0, 3.6)
    line, counts = figure.subplots(1, 2)
    line.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    for name, (positive_N, probability_N) in methods.items():
        meant, happened, _ = reliability_points(positive_N, probability_N)
        line.plot(meant, happened, label=name, marker="o", markersize=3, linewidth=1.2)
        counts.hist(probability_N, bins=list(edges), histtype="step", linewidth=1.2, label=name)
    line.legend(fontsize="small", loc="upper left")
    counts.set_yscale("log")
    _label(line, title, "probability", "share of positive rows")
    _label(counts, "rows by probability", "probability", "rows")
    return figure


def gap_figure(gaps: Mapping[str, Interval], margin: float | None = None, label: str = "difference") -> Figure:
    """Differences with their intervals, one line each; ``margin`` shades what counts as equal."""
    figure = _figure(7.0, 0.8 + 0.36 * max(len(gaps), 1))
    axes = figure.subplots()
    places = np.arange(len(gaps))[::-1]
    if margin is not None:
        axes.axvspan(-margin, margin, color=_GREY, alpha=0.25, linewidth=0)
    axes.axvline(0, color=_GREY, linewidth=0.8)
    for place, gap in zip(places, gaps.values(), strict=True):
        axes.plot([gap.low, gap.high], [place, place], color="C0", linewidth=1.4)
        axes.plot([gap.value], [place], color="C0", marker="o", markersize=4)
    axes.set_yticks(places, list(gaps), fontsize="small")
    axes.set_ylim(-0.6, len(gaps) - 0.4)
    _label(axes, "", label, "")
    return figure


def difference_figure(maps: Mapping[str, Mapping[str, Sequence[float]]], activation: int) -> Figure:
    """Heat maps of :func:`alora.identity.equality.changed_shares`: panel → site → share of changed elements by token.

    White is "equal bits", black is "every element differs", and a single changed element is grey enough to be seen. A
    red line stands before the activation index. Of a deep model, sites at even distances are shown, and each panel's
    first one that differs before the line.
    """
    sites = _shown_sites(maps, activation)
    columns = 1 if len(maps) < 4 else 2
    lines = -(-len(maps) // columns)
    figure = _figure(4.4 * columns + 0.6, (0.62 + 0.12 * len(sites)) * lines)
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes in grid[len(maps) :]:
        axes.set_visible(False)
    for axes, (title, panel) in zip(grid, maps.items(), strict=False):
        shares_ST = np.array([panel[site] for site in sites])
        seen_ST = np.where(shares_ST > 0, 0.3 + 0.7 * shares_ST, 0.0)
        axes.imshow(seen_ST, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="none")
        axes.axvline(activation - 0.5, color="red", linewidth=1)
        axes.set_yticks(range(len(sites)), sites, fontsize=6)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_title(title, fontsize="small")
    for axes in grid[max(0, len(maps) - columns) : len(maps)]:
        axes.set_xlabel("token position", fontsize="small")
        axes.tick_params(labelbottom=True)
    return figure


def _shown_sites(maps: Mapping[str, Mapping[str, Sequence[float]]], activation: int) -> list[str]:
    sites = list(next(iter(maps.values())))
    kept = {*sites[:: -(-len(sites) // MOST_SITES)], sites[-1]}
    for panel in maps.values():
        kept |= {next((site for site in sites if any(panel[site][:activation])), sites[-1])}
    return [site for site in sites if site in kept]


def lines_figure(
    lines: Mapping[str, Mapping[float, Interval]],
    labels: tuple[str, str],
    title: str = "",
    dashed: Collection[str] = (),
) -> Figure:
    """One line per name through its points with their intervals, on logarithmic axes; ``dashed`` are thin."""
    figure = _figure(6.0, 3.6)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, points in lines.items():
        places, values = list(points), list(points.values())
        reach = [[v.value - v.low for v in values], [v.high - v.value for v in values]]
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3, "linewidth": 1.4}
        if name in dashed:
            style = {"linestyle": "--", "linewidth": 0.8, "color": _GREY}
        axes.errorbar(places, [v.value for v in values], yerr=reach, label=name, **style)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    ticks = sorted({place for points in lines.values() for place in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3, linewidth=0.5)
    _label(axes, title, *labels)
    return figure


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def _label(axes: Axes | Any, title: str, below: str, staged: str) -> None:
    axes.set_title(title, fontsize="small")
    axes.set_xlabel(below, fontsize="small")
    axes.set_ylabel(staged, fontsize="small")
    axes.tick_params(labelsize="small")
