"""What kept prefix KV saves: CPU time of each epoch with ``training.prefix_cache_bytes`` and without, at one thread.

    python scripts/prefix_cache_cost.py --out benchmarks/results/prefix_cache_cpu.json

A base of random weights, a few conversations, some policies behind each; an epoch is one step per conversation. The
gradients of the last step must be the same up to rounding whatever is kept, and no prefix may run in a later epoch, or
the script fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from alora.adapter.folder import AdapterSpec
from alora.config.environment import describe_environment
from alora.lab.bench.material import INVOCATION, draw_batch, random_adapter
from alora.lab.bench.shapes import SHAPES, random_base
from alora.lab.bench.trainers import Gradients, PackedTrainer, difference
from alora.prefix.store import PrefixStore, open_store
from alora.training.examples import Batch

BUDGET = 2 * 1024**3


def epochs(trainer: PackedTrainer, batches: list[Batch], count: int) -> list[float]:
    """CPU seconds of each epoch; the last step's gradients stay."""
    seconds = []
    for _ in range(count):
        start = time.process_time()
        for one in batches:
            trainer.clear()
            trainer.on(one).step()
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="27m")
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--suffix", type=int, default=16)
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape, device = SHAPES[given.shape], torch.device("cpu")
    base = random_base(shape, device, torch.float32, 0)
    spec = AdapterSpec(8, 16.0, tuple(sorted(shape.linears)), INVOCATION)
    adapters = [random_adapter(spec, base, 10 * policy) for policy in range(given.policies)]
    batches = [
        draw_batch(shape.vocab, given.prefix, given.suffix, given.policies, n) for n in range(given.conversations)
    ]
    prefixes = [prefix for batch in batches for prefix in batch.prefixes]
    stores = {"off": PrefixStore(0, device), "kept": open_store(BUDGET, base, prefixes)}
    found: dict[str, Any] = {}
    outcomes: list[Gradients] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, store in stores.items():
            trainer = PackedTrainer(base, adapters, batches[0], Path(scratch), store=store)
            small = draw_batch(shape.vocab, 16, given.suffix, given.policies, 99)
            trainer.on(small).step()  # sets up what libraries do once
            seconds, missed = epochs(trainer, batches, 1), store.misses
            found[name] = {"epoch_seconds": seconds + epochs(trainer, batches, given.epochs - 1)}
            found[name] |= {"hits": store.hits, "misses_later": store.misses - missed}
            outcomes.append({key: (a.clone(), b.clone()) for key, (a, b) in trainer.gradients(0).items()})
            trainer.close()
    if difference(*outcomes) > 1e-5:
        sys.exit("the gradients differ with the cache; this is a fault, please report it")
    if found["kept"]["misses_later"]:
        sys.exit("a prefix was run again in a later epoch; this is a fault, please report it")
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    results = {"environment": describe_environment(), "settings": settings, "caches": found}
    for name, entry in found.items():
        sys.stdout.write(f"{name:8}" + "".join(f"{seconds:9.2f} s" for seconds in entry["epoch_seconds"]) + "\n")
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
