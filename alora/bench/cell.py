"""One cell of ``alora bench training``: a prefix and a suffix length.

Make the arms, compare what they compute, time them interleaved with a null arm, and write ratios for the baselines
whose work, loss and gradients are the same as ours.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from alora.adapter.folder import AdapterWeights
from alora.bench import guards
from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm, TrainerArm, TrlArm, peft_model
from alora.bench.flops import FlopCount
from alora.bench.measure import Clock, Interval, Sample, Turn, by_round, measure, paired_ratio, seconds_of
from alora.bench.workload import LABELS, Workload, draw_workload, pair_digest
from alora.config.schema import BenchSettings, TrainingSettings

NULL = "null"  # the cheapest packed arm once more, under another name
NULL_PAIRS = 8  # samples of the null arm: its interval then covers 99 %, so it cries wolf once in a hundred cells
CHUNK = TrainingSettings().max_suffix_tokens  # of a packed pass


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


def measure_cell(bench: Bench, prefix: int, suffix: int) -> dict[str, Any]:
    """Make the arms of one prefix and suffix length, compare them, time them; plain data for the report."""
    bench.bar.set_description(f"{prefix}/{suffix}")
    settings, made = bench.settings, sorted(set(bench.settings.policies))
    packed = {}
    for policies in made:
        own = bench.adapters[:policies]
        workload = bench.workload(prefix, suffix, policies)
        packed[policies] = PackedArm(f"packed P={policies}", bench.base, own, workload, bench.scratch, CHUNK)
    baselines = _baselines(bench, bench.workload(prefix, suffix, max(made)))
    costs = {arm.name: bench.flops.packed(prefix, suffix, len(LABELS), p) * p for p, arm in packed.items()}
    costs |= {name: baseline_flops(bench.flops, name, prefix, suffix) for name in baselines}
    costs[NULL] = costs[packed[made[0]].name]
    worst = _agreement(bench, packed, baselines, prefix, suffix)
    samples = _time(bench, packed, baselines, lambda sample: bench.done(costs[sample.arm]))
    faults = {p: _faults(arm, bench.workload(prefix, suffix, p)) for p, arm in packed.items()}
    for arm in packed.values():
        arm.close()
    null = paired_ratio(seconds_of(samples, NULL), seconds_of(samples, packed[made[0]].name))
    floor = bench.flops.suffix(prefix, suffix, len(LABELS))
    found = {
        "prefix": prefix,
        "suffix": suffix,
        "pairs": {arm.name: policies for policies, arm in packed.items()} | dict.fromkeys(baselines, 1),
        "flops": costs,
        "worst_difference": worst,
        "null": null.as_dict(),
        "ratios": _ratios(bench, packed, baselines, samples, (worst, null, faults), (costs, floor)),
        "samples": [asdict(sample) for sample in samples],
        "rounds": settings.rounds,
    }
    gc.collect()
    return found


def _ratios(
    bench: Bench,
    packed: dict[int, PackedArm],
    baselines: dict[str, Any],
    samples: Sequence[Sample],
    checks: tuple[dict[str, float], Interval, dict[int, list[str]]],
    flops: tuple[dict[str, float], float],
) -> list[dict[str, Any]]:
    """Every baseline over every number of policies, where no guard objects."""
    (worst, null, faults), (costs, floor) = checks, flops
    found = []
    for name, baseline in baselines.items():
        for policies, arm in packed.items():
            reasons = (
                *faults[policies],
                guards.unequal_work(arm.work(), baseline.work()),
                guards.unequal_results(worst[name], bench.tolerance),
                guards.biased_null(null),
            )
            fast = [seconds / policies for seconds in by_round(samples, arm.name)]
            ratio = paired_ratio(by_round(samples, name), fast)
            entry = ratio_entry(name, policies, ratio, [reason for reason in reasons if reason])
            entry["flop_ratio"] = costs[name] / (costs[arm.name] / policies)
            entry["limit"] = costs[name] / floor
            found.append(entry)
    return found


def _faults(arm: PackedArm, workload: Workload) -> list[str]:
    """Why seconds of ``arm`` may not be shared out over its pairs: it left some out, in its last step, or untrained."""
    wanted = {pair_digest(workload.prompt(place), workload.answer(place)) for place in range(workload.policies)}
    ran = len(wanted & {item.digest for item in arm.work()})
    found = []
    if ran < len(wanted):
        found.append(f"ours ran {ran} of its {len(wanted)} pairs")
    if arm.untrained:
        found.append(f"{len(arm.untrained)} of our {len(wanted)} policies got no gradient, or one that is not finite")
    return found


def ratio_entry(baseline: str, policies: int, ratio: Interval, reasons: Sequence[str]) -> dict[str, Any]:
    """A ratio for the report; without a number when there is a reason to refuse it."""
    measured = None if reasons else ratio.as_dict()
    return {"baseline": baseline, "policies": policies, "ratio": measured, "refused": list(reasons)}


def null_repeats(settings: BenchSettings) -> int:
    """Samples of the null arm, and of the arm that it repeats, in each round."""
    return -(-NULL_PAIRS // settings.rounds)


def baseline_flops(flops: FlopCount, name: str, prefix: int, suffix: int) -> int:
    """FLOPs of one pair in a full-sequence arm."""
    rows = {"peft": 1, "trainer": prefix + suffix + 1, "trl": 1}[name]  # positions whose logits are computed
    return flops.full_sequence(prefix, suffix, rows)


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
    two train against the whole vocabulary, so they are compared with ours doing the same for the first policy. Of the
    policies between, each packed arm notes which got no gradient (:attr:`PackedArm.untrained`).
    """
    worst: dict[str, float] = {}
    checked = sorted({0, max(packed) - 1})
    ours = {p: arm.outcomes([place for place in checked if place < p]) for p, arm in packed.items()}
    for name, arm in baselines.items():
        if arm.objective == "labels":
            reference = []
            for place in checked:
                arm.train_policy(bench.adapters[place], place)
                reference.append(arm.outcome())
            arm.train_policy(bench.adapters[0], 0)
            both = [pair for found in ours.values() for pair in zip(found, reference, strict=False)]
            worst[name] = max(guards.disagreement(mine, theirs) for mine, theirs in both)
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
    repeats = null_repeats(settings)
    turns += [Turn(NULL, cheapest.step, cheapest.clear)] * repeats
    turns += [Turn(cheapest.name, cheapest.step, cheapest.clear)] * (repeats - 1)
    return measure(turns, settings.rounds, settings.seed, bench.clock, done)
