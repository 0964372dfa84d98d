"""Packed training and scoring on one GPU, in one run: ratios, share of the matrix rate, distance to the floor.

    python scripts/gpu_training_bench.py --out gpu_training.json       # the shape of Qwen3-4B, bfloat16
    python scripts/gpu_training_bench.py --shape toy --device cpu      # whether it runs

1. The rate: the best of some large matrix products in the base's dtype, so that every figure stands beside what this
   device does, not beside a data sheet.
2. Training at prefix 2000, suffixes 16 and 48, P = 1, 32, 100, against PEFT, ``transformers.Trainer`` and TRL, with the
   guards of ``alora bench training``: pairs a second, and the share of the rate that the counted arithmetic reaches.
3. Scoring 1000 x 100 and 5000 x 100, suffix 32, in one pass: wall time beside its floor, which is FLOPs over the rate.

Every sample is in the JSON. ``--minutes`` bounds the run: a part that would not end in time, by the time that its
like has taken, is left out and named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from alora.bench.flops import FlopCount
from alora.bench.measure import Clock
from alora.bench.report import markdown
from alora.bench.scoring import ScorerArm
from alora.bench.shapes import SHAPES, random_base
from alora.bench.training import run_training
from alora.bench.workload import LABELS, draw_adapter, draw_workload
from alora.config.environment import describe_environment
from alora.config.schema import BenchSettings

SUFFIX = 32  # of scoring


def matmul_rate(device: torch.device, dtype: torch.dtype, size: int, repeats: int = 10) -> float:
    """FLOP/s of the fastest of ``repeats`` products of ``size`` by ``size`` matrices."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    clock = Clock(device)
    clock.time(lambda: a @ b)
    return 2 * size**3 / min(clock.time(lambda: a @ b)[1] for _ in range(repeats))


def train(settings: BenchSettings, device: torch.device, dtype: torch.dtype, rate: float) -> dict[str, Any]:
    """``alora bench training``, and per cell and arm its pairs a second and share of the rate."""
    results = run_training(settings, device, dtype)
    for cell in results["cells"]:
        cell["speed"] = {}
        for arm, pairs in cell["pairs"].items():
            seconds = statistics.median(s["wall"] for s in cell["samples"] if s["arm"] == arm)
            cell["speed"][arm] = {
                "pairs_per_second": pairs / seconds,
                "share_of_rate": cell["flops"][arm] / seconds / rate,
            }
    return results


def score(
    settings: BenchSettings, prefix: int, device: torch.device, dtype: torch.dtype, rate: float
) -> dict[str, Any]:
    """All adapters on one conversation, several times: wall seconds and the floor under them."""
    shape, count = SHAPES[settings.shape], max(settings.policies)
    flops = FlopCount(shape, settings.rank, sorted(shape.linears))
    base = random_base(shape, device, dtype, settings.seed)
    adapters = [
        draw_adapter(base, settings.rank, sorted(shape.linears), settings.seed + place) for place in range(count)
    ]
    arm, clock = ScorerArm(base, adapters, draw_workload(shape, prefix, SUFFIX, count, settings.seed)), Clock(device)
    arm.step()
    walls = [clock.time(arm.step)[1] for _ in range(2 * settings.rounds + 1)]
    arm.close()
    floor = (flops.prefix(prefix) + count * flops.scored_suffix(prefix, SUFFIX, len(LABELS))) / rate
    wall = statistics.median(walls)
    return {
        "prefix": prefix, "suffix": SUFFIX, "policies": count, "wall_seconds": walls, "floor_seconds": floor,
        "over_floor": wall / floor,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3_4b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--suffixes", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--policies", type=int, nargs="+", default=[1, 32, 100])
    parser.add_argument("--scored", type=int, nargs="+", default=[1000, 5000], help="prefixes of scoring")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_training.json"))
    given = parser.parse_args()
    started, device = time.monotonic(), torch.device(given.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.set_float32_matmul_precision("high")  # adapters are float32: tensor cores take them as TF32, for every arm
    rate = matmul_rate(device, dtype, 8192 if device.type == "cuda" else 256)
    results: dict[str, Any] = {"environment": describe_environment(), "matmul_flops_per_second": rate, "left_out": []}
    common = {"shape": given.shape, "policies": given.policies, "rank": given.rank, "rounds": given.rounds}
    longest = 0.0

    def run(name: str, part: Any) -> None:
        nonlocal longest
        begun = time.monotonic()
        if begun - started + longest > 60 * given.minutes:
            results["left_out"].append(name)
            return
        results[name] = part()
        longest = max(longest, time.monotonic() - begun)
        given.out.write_text(json.dumps(results, indent=1) + "\n")  # what is there stays there

    for prefix in given.scored:
        settings = BenchSettings(**common)
        run(f"scoring {prefix}", lambda prefix=prefix, s=settings: score(s, prefix, device, dtype, rate))
    for suffix in given.suffixes:
        settings = BenchSettings(
            **common, prefixes=[given.prefix], suffixes=[suffix], scoring_adapters=[], memory=False
        )
        run(f"training {suffix}", lambda s=settings: train(s, device, dtype, rate))
    for name, part in results.items():
        if name.startswith("training"):
            sys.stdout.write(markdown({**part, "environment": results["environment"]}))
            sys.stdout.write(json.dumps([cell["speed"] for cell in part["cells"]], indent=1) + "\n")
        elif name.startswith("scoring"):
            sys.stdout.write(f"{name} x {part['policies']}: {part['over_floor']:.2f} times the floor\n")
    sys.stdout.write(f"left out: {results['left_out'] or 'nothing'}; every sample is in {given.out}\n")


if __name__ == "__main__":
    main()
