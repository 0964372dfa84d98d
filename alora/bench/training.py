"""``alora bench training``: packed training against three full-sequence trainers, and scoring against LoRA prefills.

One cell is a prefix and a suffix length. Per cell: make the arms, compare what they compute, time them interleaved
with a null arm, and write ratios for the baselines whose work, loss and gradients are the same as ours.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from alora.adapter.folder import AdapterWeights
from alora.bench import guards, scoring
from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm, TrainerArm, TrlArm, peft_model
from alora.bench.flops import FlopCount
from alora.bench.measure import Clock, Interval, Sample, Turn, by_round, measure, paired_ratio, seconds_of
from alora.bench.memory import MemoryCase, extra_peak
from alora.bench.shapes import SHAPES, random_base
from alora.bench.workload import LABELS, Workload, draw_adapter, draw_workload
from alora.config.schema import BenchSettings

NULL = "null"  # the cheapest packed arm once more, under another name
NULL_PAIRS = 8  # samples of the null arm: its interval then covers 99 %, so it cries wolf once in a hundred cells
CHUNK = 4096  # suffix tokens of a packed pass, as in training
_TARGETS = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")


@dataclass
class Bench:
    """What all cells share."""

    settings: BenchSettings
    base: PreTrainedModel
    adapters: list[AdapterWeights]
    flops: FlopCount
    clock: Clock
    tolerance: float
    scratch: Path
    bar: tqdm

    def workload(self, prefix: int, suffix: int, policies: int) -> Workload:
        """The prompts of a cell."""
        return draw_workload(self.flops.shape, prefix, suffix, policies, self.settings.seed)

    def done(self, flops: float) -> None:
        """Move the bar on by work, which predicts the time left better than steps do."""
        self.bar.update(flops / 1e12)


def run_training(settings: BenchSettings, device: torch.device, dtype: torch.dtype, progress: bool = True) -> dict:
    """Measure everything that ``settings`` ask for; plain data for the report."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    shape = SHAPES[settings.shape]
    flops = FlopCount(shape, settings.rank, _TARGETS)
    base = random_base(shape, device, dtype, settings.seed)
    most = max([*settings.policies, *settings.scoring_adapters])
    adapters = [draw_adapter(base, settings.rank, _TARGETS, settings.seed + 10 * place) for place in range(most)]
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left"
    total = _planned(settings, flops) / 1e12
    try:
        with tempfile.TemporaryDirectory() as scratch, tqdm(total=total, disable=not progress, bar_format=form) as bar:
            tolerance = guards.tolerance_of(dtype)
            bench = Bench(settings, base, adapters, flops, Clock(device), tolerance, Path(scratch), bar)
            cells = [_cell(bench, p, s) for p in settings.prefixes for s in settings.suffixes]
            scored = _scoring(bench) if settings.scoring_adapters else None
            bar.set_description("memory")
            memory = _memory(settings, device, dtype) if settings.memory else []
    finally:
        torch.set_num_threads(threads)
    return {
        "settings": asdict(settings),
        "shape": asdict(shape) | {"parameters": shape.parameters},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
        "clock": bench.clock.name,
        "tolerance": bench.tolerance,
        "cells": cells,
        "scoring": scored,
        "memory": memory,
    }


def _cell(bench: Bench, prefix: int, suffix: int) -> dict[str, Any]:
    bench.bar.set_description(f"{prefix}/{suffix}")
    settings, made = bench.settings, sorted(set(bench.settings.policies))
    packed = {}
    for policies in made:
        own = bench.adapters[:policies]
        workload = bench.workload(prefix, suffix, policies)
        packed[policies] = PackedArm(f"packed P={policies}", bench.base, own, workload, bench.scratch, CHUNK)
    baselines = _baselines(bench, bench.workload(prefix, suffix, max(made)))
    costs = {arm.name: bench.flops.packed(prefix, suffix, len(LABELS), p) * p for p, arm in packed.items()}
    costs |= {name: _baseline_flops(bench.flops, name, prefix, suffix) for name in baselines}
    costs[NULL] = costs[packed[made[0]].name]
    worst = _agreement(bench, packed, baselines, prefix, suffix)
    samples = _time(bench, packed, baselines, lambda sample: bench.done(costs[sample.arm]))
    for arm in packed.values():
        arm.close()
    first = packed[made[0]].name
    null = paired_ratio(seconds_of(samples, NULL), seconds_of(samples, first))
    ratios = []
    for name, baseline in baselines.items():
        for policies, arm in packed.items():
            reasons = (
                guards.unequal_work(arm.work(), baseline.work()),
                guards.unequal_results(worst[name], bench.tolerance),
                guards.biased_null(null),
            )
            fast = [seconds / policies for seconds in by_round(samples, arm.name)]
            ratio = paired_ratio(by_round(samples, name), fast)
            ratios.append(ratio_entry(name, policies, ratio, [reason for reason in reasons if reason]) | {
                "flop_ratio": costs[name] / (costs[arm.name] / policies),
                "limit": costs[name] / bench.flops.suffix(prefix, suffix, len(LABELS)),
            })  # fmt: skip
    gc.collect()
    return {
        "prefix": prefix,
        "suffix": suffix,
        "pairs": {arm.name: policies for policies, arm in packed.items()} | dict.fromkeys(baselines, 1),
        "flops": costs,
        "worst_difference": worst,
        "null": null.as_dict(),
        "ratios": ratios,
        "samples": [asdict(sample) for sample in samples],
        "rounds": settings.rounds,
    }


def ratio_entry(baseline: str, policies: int, ratio: Interval, reasons: Sequence[str]) -> dict[str, Any]:
    """A ratio for the report; without a number when there is a reason to refuse it."""
    measured = None if reasons else ratio.as_dict()
    return {"baseline": baseline, "policies": policies, "ratio": measured, "refused": list(reasons)}


def _baselines(bench: Bench, workload: Workload) -> dict[str, PeftArm | TrainerArm]:
    spec, first = bench.adapters[0].spec, bench.adapters[0]
    made: dict[str, PeftArm | TrainerArm] = {}
    for name in bench.settings.baselines:
        model = peft_model(bench.base, spec)
        if name == "peft":
            made[name] = PeftArm(name, model, first, workload, policy=0)
        else:
            kind = TrlArm if name == "trl" else TrainerArm
            made[name] = kind(name, model, first, workload, bench.scratch)
    return made


def _agreement(
    bench: Bench, packed: dict[int, PackedArm], baselines: dict[str, Any], prefix: int, suffix: int
) -> dict[str, float]:
    """Worst relative difference of each baseline to ours; also every arm's warm-up.

    ``peft`` is compared for the first and the last policy, with every number of policies that holds them. The other
    two train against the whole vocabulary, so they are compared with ours doing the same for the first policy.
    """
    worst: dict[str, float] = {}
    checked = sorted({0, max(packed) - 1})
    ours = {p: arm.outcomes([place for place in checked if place < p]) for p, arm in packed.items()}
    for name, arm in baselines.items():
        if arm.objective == "labels":
            reference = {}
            for place in checked:
                arm.train_policy(bench.adapters[place], place)
                outcome = arm.outcome()
                reference[outcome.digest] = outcome
            arm.train_policy(bench.adapters[0], 0)
            worst[name] = max(guards.disagreement(o, reference[o.digest]) for found in ours.values() for o in found)
        else:
            one = bench.workload(prefix, suffix, 1)
            wide = PackedArm("wide", bench.base, bench.adapters[:1], one, bench.scratch, CHUNK, vocabulary=True)
            worst[name] = guards.disagreement(wide.outcomes([0])[0], arm.outcome())
            wide.close()
    return worst


def _time(
    bench: Bench, packed: dict[int, PackedArm], baselines: dict[str, Any], done: Callable[[Sample], None]
) -> list[Sample]:
    settings, cheapest = bench.settings, packed[min(packed)]
    turns = [Turn(arm.name, arm.step, arm.clear) for arm in [*packed.values(), *baselines.values()]]
    repeats = -(-NULL_PAIRS // settings.rounds)
    turns += [Turn(NULL, cheapest.step, cheapest.clear)] * repeats
    turns += [Turn(cheapest.name, cheapest.step, cheapest.clear)] * (repeats - 1)
    return measure(turns, settings.rounds, settings.seed, bench.clock, done)


def _baseline_flops(flops: FlopCount, name: str, prefix: int, suffix: int) -> int:
    rows = {"peft": 1, "trainer": prefix + suffix + 1, "trl": 1}[name]  # positions whose logits are computed
    return flops.full_sequence(prefix, suffix, rows)


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
        reasons = [guards.unequal_results(worst, bench.tolerance), _unequal_prompts(arm, lora, count)]
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


def _memory(settings: BenchSettings, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """PEFT, the split alone, and twice as many policies in chunks of one size: memory follows the chunk."""
    prefix, suffix, most = settings.prefixes[0], settings.suffixes[0], max(settings.policies)
    chunk = max(1, most // 3) * suffix  # a third of the policies in one pass
    found = []
    for arm, policies, limit in (
        ("peft", 1, CHUNK),
        ("packed", 1, CHUNK),
        ("packed", most, CHUNK),
        ("packed", max(1, most // 3), chunk),
        ("packed", most, chunk),
    ):
        case = MemoryCase(
            arm=arm, shape=settings.shape, prefix=prefix, suffix=suffix, policies=policies, chunk=limit,
            rank=settings.rank, targets=_TARGETS, device=str(device), dtype=str(dtype).removeprefix("torch."),
            seed=settings.seed, threads=settings.threads,
        )  # fmt: skip
        found.append({
            "arm": arm, "prefix": prefix, "suffix": suffix, "policies": policies, "chunk": limit,
            "extra_mib": extra_peak(case),
        })  # fmt: skip
    return found


def _planned(settings: BenchSettings, flops: FlopCount) -> float:
    """FLOPs of all timed steps, for the bar."""
    total = 0.0
    repeats = -(-NULL_PAIRS // settings.rounds)
    for prefix in settings.prefixes:
        for suffix in settings.suffixes:
            each = [flops.packed(prefix, suffix, len(LABELS), p) * p for p in settings.policies]
            each.append((2 * repeats - 1) * flops.packed(prefix, suffix, len(LABELS), min(settings.policies)))
            each += [_baseline_flops(flops, name, prefix, suffix) for name in settings.baselines]
            total += settings.rounds * sum(each)
    prefix, suffix = settings.scoring_prefix, settings.scoring_suffix
    for count in settings.scoring_adapters:
        scored = flops.prefix(prefix) + count * flops.scored_suffix(prefix, suffix, len(LABELS))
        total += settings.rounds * scored
    if settings.scoring_adapters:
        prefills = min(settings.lora_prefills, max(settings.scoring_adapters))
        total += settings.rounds * prefills * flops.lora_prefill(prefix, suffix)
    return total
