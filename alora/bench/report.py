"""``bench.json`` with every raw sample, and ``bench.md`` for people."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def refusals(results: Mapping[str, Any]) -> list[str]:
    """Every ratio that is withheld, with its reasons."""
    found = []
    for cell in results["cells"]:
        place = f"{cell['prefix']}/{cell['suffix']}"
        found += [f"{place} P={r['policies']} against {r['baseline']}: {'; '.join(r['refused'])}" for r in _held(cell)]
    if results["scoring"]:
        found += [f"scoring N={r['policies']}: {'; '.join(r['refused'])}" for r in _held(results["scoring"])]
    return found


def markdown(results: Mapping[str, Any]) -> str:
    """The whole report."""
    parts = ["# Packed training and scoring, measured", _conditions(results)]
    parts += [_cell(cell) for cell in results["cells"]]
    if results["scoring"]:
        parts.append(_scoring(results["scoring"]))
    if results["memory"]:
        parts.append(_memory(results["memory"]))
    withheld = refusals(results)
    if withheld:
        parts.append("## Withheld\n\n" + "\n".join(f"- {line}" for line in withheld))
    return "\n\n".join(parts) + "\n"


def _held(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in part["ratios"] if entry["refused"]]


def _conditions(results: Mapping[str, Any]) -> str:
    shape, settings, environment = results["shape"], results["settings"], results["environment"]
    versions = ", ".join(
        f"{name} {environment[name]}"
        for name in ("alora", "torch", "transformers", "peft", "trl")
        if name in environment
    )
    return (
        f"Base: Qwen3 of {shape['parameters'] / 1e6:.0f} M random weights ({shape['layers']} layers of "
        f"{shape['hidden']}, {shape['heads']} heads on {shape['kv_heads']} KV heads of {shape['width']}, MLP "
        f"{shape['intermediate']}, vocabulary {shape['vocab']}), {_weights(results)} on {results['device']}, "
        f"{settings['threads']} thread(s). Adapters of rank {settings['rank']} on all seven linear modules. "
        f"Seconds are {results['clock']}; a step is forward and backward, without the optimiser. "
        f"{settings['rounds']} rounds in shuffled order, seed {settings['seed']}. {versions}. "
        f"`{environment['command']}`\n\n"
        "A pair is one conversation with one policy. *Ratio* is seconds per pair of the baseline over ours, the "
        "median over rounds with the interval of its order statistics; *FLOPs* is the ratio of the arithmetic, and "
        "*limit* what it tends to as P grows."
    )


def _weights(results: Mapping[str, Any]) -> str:
    packed = results.get("quantization", "none")
    size = f", {results['base_mib']:.0f} MiB of weights" if "base_mib" in results else ""
    return results["dtype"] + ("" if packed == "none" else f" on weights in {packed}") + size


def _cell(cell: Mapping[str, Any]) -> str:
    medians = {name: _median(cell["samples"], name) / pairs for name, pairs in cell["pairs"].items()}
    baselines = list(dict.fromkeys(entry["baseline"] for entry in cell["ratios"]))
    rows = []
    for policies in sorted({entry["policies"] for entry in cell["ratios"]}):
        row: list[str] = [str(policies), f"{1000 * medians[f'packed P={policies}']:.1f}"]
        for name in baselines:
            entry = next(e for e in cell["ratios"] if e["baseline"] == name and e["policies"] == policies)
            row += [_ratio(entry), f"{entry['flop_ratio']:.1f}", f"{entry['limit']:.0f}"]
        rows.append(row)
    heads = ["P", "ours, ms a pair"]
    for name in baselines:
        heads += [f"against {name} ({1000 * medians[name]:.0f} ms a pair)", "FLOPs", "limit"]
    null, worst = cell["null"], cell["worst_difference"]
    differences = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    return (
        f"## Training, prefix {cell['prefix']}, suffix {cell['suffix']}\n\n{table(heads, rows)}\n\n"
        f"Null arm: {null['median']:.3f} [{null['low']:.3f}, {null['high']:.3f}]. Largest relative difference of "
        f"loss and gradients to ours: {differences}. Intervals of ratios cover {_coverage(cell)}."
    )


def _scoring(scored: Mapping[str, Any]) -> str:
    rows = [
        [
            str(entry["policies"]), f"{entry['seconds']:.2f}",
            f"{entry['lora_seconds']:.1f}{' (extrapolated)' if entry['extrapolated'] else ''}",
            _ratio(entry), f"{entry['flop_ratio']:.1f}", f"{entry['limit']:.0f}",
        ]
        for entry in scored["ratios"]
    ]  # fmt: skip
    heads = ["N", "ours, s", "N LoRA prefills, s", "ratio", "FLOPs", "limit"]
    return (
        f"## Scoring one conversation, prefix {scored['prefix']}, suffix {scored['suffix']}\n\n"
        f"{table(heads, rows)}\n\n"
        f"{scored['lora_prefills']} prefills were run in each round; *extrapolated* rows are that many times their "
        "mean. Our logits differ from PEFT's full-sequence aLoRA by at most "
        f"{scored['worst_difference']:.1e} (relative). Intervals cover {_coverage(scored)}."
    )


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    weighed = [
        [
            row["arm"],
            str(row["policies"]),
            "-" if row["arm"] == "peft" else str(row["chunk"]),
            f"{row['extra_mib']:.0f}",
        ]
        for row in rows
    ]
    first = rows[0]
    return (
        f"## Peak memory of a step, prefix {first['prefix']}, suffix {first['suffix']}\n\n"
        f"{table(['arm', 'P', 'suffix tokens of a pass, at most', 'MiB'], weighed)}\n\n"
        "Beyond weights, adapters and their gradients; each row in a process of its own."
    )


def _median(samples: Sequence[Mapping[str, Any]], arm: str) -> float:
    return statistics.median(sample["seconds"] for sample in samples if sample["arm"] == arm)


def _coverage(part: Mapping[str, Any]) -> str:
    found = {entry["ratio"]["coverage"] for entry in part["ratios"] if entry["ratio"]}
    return ", ".join(f"{100 * value:.0f} %" for value in sorted(found)) or "nothing, all are withheld"


def _ratio(entry: Mapping[str, Any]) -> str:
    ratio = entry["ratio"]
    return "withheld" if ratio is None else f"**{ratio['median']:.1f}** [{ratio['low']:.1f}, {ratio['high']:.1f}]"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
