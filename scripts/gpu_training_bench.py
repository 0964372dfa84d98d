"""Packed training and scoring on one GPU, in one run: ratios, and every system's distance to the roofline.

    python scripts/gpu_training_bench.py --out gpu_training     # the shape of Qwen3-4B, bfloat16
    python scripts/gpu_training_bench.py --shape toy --device cpu    # whether it runs

1. ``alora bench training`` at prefix 2000, suffixes 16 and 48, P = 1, 32, 100, against PEFT,
   ``transformers.Trainer`` and TRL.
2. ``alora bench serving`` on the packed scorer alone, 1000 and 5000 tokens by 100 policies, suffix 32.

Each part writes a ``bench.json`` and a ``bench.md`` below ``--out``. ``--minutes`` bounds the run: a part that would
not end in time, by the time that its like has taken, is left out and named.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from alora.bench.record import record_json
from alora.bench.report import markdown
from alora.bench.run import run_bench
from alora.bench.shapes import SHAPES
from alora.config.schema import BaseSettings, BenchSettings, ServingBenchSettings

SCORED_SUFFIX = 32


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
    parser.add_argument("--out", type=Path, default=Path("gpu_training"))
    given = parser.parse_args()
    started, device = time.monotonic(), torch.device(given.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.set_float32_matmul_precision("high")  # adapters are float32: tensor cores take them as TF32, for every system
    scoring = ServingBenchSettings(engine="scorer", workloads=["grid"], systems=["packed"])
    common = {"shape": given.shape, "rank": given.rank, "rounds": given.rounds, "memory": False}
    parts = {
        f"scoring_{prefix}": BenchSettings(
            workload="serving", prefixes=[prefix], suffix=SCORED_SUFFIX, policies=[max(given.policies)],
            serving=scoring, **common,
        )
        for prefix in given.scored
    } | {
        f"training_{suffix}": BenchSettings(
            workload="training", prefixes=[given.prefix], suffix=suffix, policies=given.policies, **common
        )
        for suffix in given.suffixes
    }  # fmt: skip
    longest, left_out = 0.0, []
    for name, settings in parts.items():
        begun = time.monotonic()
        if begun - started + longest > 60 * given.minutes:
            left_out.append(name)
            continue
        record = run_bench(settings, BaseSettings(), device, dtype)
        longest = max(longest, time.monotonic() - begun)
        (given.out / name).mkdir(parents=True, exist_ok=True)
        (given.out / name / "bench.json").write_text(record_json(record))  # what is there stays there
        (given.out / name / "bench.md").write_text(markdown(record))
        sys.stdout.write(markdown(record))
    sys.stdout.write(f"left out: {left_out or 'nothing'}; every sample is below {given.out}\n")


if __name__ == "__main__":
    main()
