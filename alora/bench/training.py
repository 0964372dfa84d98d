"""``alora bench training``: packed training against three full-sequence trainers, and scoring against LoRA prefills."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from alora.bench import guards, scoring
from alora.bench.baselines import peft_model
from alora.bench.cell import CHUNK, Bench, baseline_flops, measure_cell, null_repeats, ratio_entry
from alora.bench.flops import FlopCount
from alora.bench.measure import Clock
from alora.bench.memory import MemoryCase, extra_peak
from alora.bench.shapes import SHAPES, base_mib, random_base
from alora.bench.workload import LABELS, draw_adapter
from alora.config.schema import BenchSettings

TARGETS = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


def run_training(
    settings: BenchSettings, device: torch.device, dtype: torch.dtype, progress: bool = True, quantized: bool = False
) -> dict:
    """Measure everything that ``settings`` ask for; plain data for the report."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    shape = SHAPES[settings.shape]
    flops = FlopCount(shape, settings.rank, TARGETS)
    base = random_base(shape, device, dtype, settings.seed, quantized)
    most = max([*settings.policies, *settings.scoring_adapters])
    adapters = [draw_adapter(base, settings.rank, TARGETS, settings.seed + 10 * place) for place in range(most)]
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"
    total = _planned(settings, flops) / 1e12
    try:
        with tempfile.TemporaryDirectory() as scratch, tqdm(total=total, disable=not progress, bar_format=form) as bar:
            tolerance = guards.tolerance_of(dtype)
            bench = Bench(settings, base, adapters, flops, Clock(device), tolerance, Path(scratch), bar)
            cells = [measure_cell(bench, p, s) for p in settings.prefixes for s in settings.suffixes]
            scored = _scoring(bench) if settings.scoring_adapters else None
            bar.set_description("memory")
            memory = _memory(settings, device, dtype, quantized) if settings.memory else []
    finally:
        torch.set_num_threads(threads)
    return {
        "settings": asdict(settings),
        "shape": asdict(shape) | {"parameters": shape.parameters},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "quantization": "nf4" if quantized else "none",
        "base_mib": base_mib(base),
        "clock": bench.clock.name,
        "tolerance": bench.tolerance,
        "cells": cells,
        "scoring": scored,
        "memory": memory,
    }


def _scoring(bench: Bench) -> dict[str, Any]:
    settings = bench.settings
    prefix, suffix, counts = settings.scoring_prefix, settings.scoring_suffix, sorted(settings.scoring_adapters)
    bench.bar.set_description(f"scoring {prefix}/{suffix}")
    workload = bench.workload(prefix, suffix, max(counts))
    arms = [(count, scoring.ScorerArm(bench.base, bench.adapters[:count], workload)) for count in counts]
    spec = bench.adapters[0].spec
    reference = peft_model(bench.base, spec)
    reference.eval()
    worst = max(scoring.worst_logit_difference(arm, reference, bench.adapters, workload) for _, arm in arms)
    del reference
    prefills = min(settings.lora_prefills, max(counts))
    lora = scoring.LoraArm(scoring.lora_model(bench.base, spec), bench.adapters, workload, prefills)
    lora.turns()[0].run()
    one = bench.flops.lora_prefill(prefix, suffix)
    costs = {a.name: bench.flops.prefix(prefix) + n * bench.flops.scored_suffix(prefix, suffix, 2) for n, a in arms}
    costs[lora.name] = one
    result = scoring.time_scoring(
        arms, lora, settings.rounds, settings.seed, bench.clock, lambda sample: bench.done(costs[sample.arm])
    )
    ratios = []
    for count, arm in arms:
        arm.close()
        ran = len({item.digest for item in arm.work()})
        reasons = [guards.unequal_results(worst, bench.tolerance), _unequal_prompts(arm, lora, count)]
        reasons.append(f"ours ran {ran} of its {count} prompts" if ran < count else None)
        ours, theirs = result.seconds[count]
        ratios.append(ratio_entry("lora", count, result.ratios[count], [r for r in reasons if r]) | {
            "seconds": ours,
            "lora_seconds": theirs,
            "extrapolated": count > result.measured,
            "flop_ratio": count * one / costs[arm.name],
            "limit": one / bench.flops.scored_suffix(prefix, suffix, len(LABELS)),
        })  # fmt: skip
    return {
        "prefix": prefix, "suffix": suffix, "worst_difference": worst, "lora_prefills": result.measured,
        "ratios": ratios, "samples": [asdict(sample) for sample in result.samples],
    }  # fmt: skip


def _unequal_prompts(arm: scoring.ScorerArm, lora: scoring.LoraArm, count: int) -> str | None:
    theirs = lora.work()[:count]
    return guards.unequal_work(arm.work() if count >= len(theirs) else [], theirs)


def _memory(settings: BenchSettings, device: torch.device, dtype: torch.dtype, quantized: bool) -> list[dict[str, Any]]:
    """PEFT, the split alone, and few and many policies in passes of one size: memory follows the pass."""
    prefix, suffix, most = settings.prefixes[0], settings.suffixes[0], max(settings.policies)
    few = min(8, most)
    chunk = few * suffix  # the few in one pass, the many in several of the same size
    found = []
    for arm, policies, limit in (
        ("peft", 1, CHUNK),
        ("packed", 1, CHUNK),
        ("packed", most, CHUNK),
        ("packed", few, chunk),
        ("packed", most, chunk),
    ):
        case = MemoryCase(
            arm=arm, shape=settings.shape, prefix=prefix, suffix=suffix, policies=policies, chunk=limit,
            rank=settings.rank, targets=TARGETS, device=str(device), dtype=str(dtype).removeprefix("torch."),
            seed=settings.seed, threads=settings.threads, quantized=quantized,
        )  # fmt: skip
        found.append({
            "arm": arm, "prefix": prefix, "suffix": suffix, "policies": policies, "chunk": limit,
            "extra_mib": extra_peak(case),
        })  # fmt: skip
    return found


def _planned(settings: BenchSettings, flops: FlopCount) -> float:
    """FLOPs of all timed steps, for the bar."""
    total = 0.0
    repeats = null_repeats(settings)
    for prefix in settings.prefixes:
        for suffix in settings.suffixes:
            each = [flops.packed(prefix, suffix, len(LABELS), p) * p for p in settings.policies]
            each.append((2 * repeats - 1) * flops.packed(prefix, suffix, len(LABELS), min(settings.policies)))
            each += [baseline_flops(flops, name, prefix, suffix) for name in settings.baselines]
            total += settings.rounds * sum(each)
    prefix, suffix = settings.scoring_prefix, settings.scoring_suffix
    for count in settings.scoring_adapters:
        scored = flops.prefix(prefix) + count * flops.scored_suffix(prefix, suffix, len(LABELS))
        total += settings.rounds * scored
    if settings.scoring_adapters:
        prefills = min(settings.lora_prefills, max(settings.scoring_adapters))
        total += settings.rounds * prefills * flops.lora_prefill(prefix, suffix)
    return total
