"""Peak memory of a training step, beyond weights, adapters and their gradients: PEFT's, and the packed step's.

    python scripts/step_memory.py --out benchmarks/results/step_memory_cpu.json

Packed steps of few and of many policies run in passes of one size, and all suffixes in one pass: memory follows the
pass, and not the policies. On a GPU it is the allocator's peak, on a CPU the resident set's.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from alora.adapter.folder import AdapterSpec
from alora.config.environment import describe_environment
from alora.lab.bench.material import INVOCATION, draw_batch, random_adapter
from alora.lab.bench.reference import peft_model
from alora.lab.bench.shapes import SHAPES, random_base
from alora.lab.bench.trainers import PASS_TOKENS, PackedTrainer, PeftTrainer
from alora.training.examples import Batch

Step = Callable[[], object]
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # glibc's names


def return_freed_memory() -> None:
    """Give it back at once: the resident set otherwise follows glibc's habits and not the need of what runs."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(name, 65536)


def extra_peak_mib(first: Step, measured: Step, device: torch.device) -> float:
    """MiB that ``measured`` needs at its peak; ``first`` makes the gradients, and what libraries set up once."""
    first()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        measured()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    before = _resident_mib("VmRSS")
    measured()
    return _resident_mib("VmHWM") - before


def _resident_mib(key: str) -> float:
    (kib,) = re.findall(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kib) / 2**10


def step_rows(given: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """The peak of each step, with its policies and the suffix tokens of a pass."""
    shape, device = SHAPES[given.shape], torch.device(given.device)
    base = random_base(shape, device, torch.float32, 0)
    spec = AdapterSpec(given.rank, 2.0 * given.rank, tuple(sorted(shape.linears)), INVOCATION)
    adapters = [random_adapter(spec, base, 10 * policy) for policy in range(given.policies)]
    few, rows = min(8, given.policies), []

    def add(system: str, policies: int, tokens: int, first: Step, measured: Step) -> None:
        peak = extra_peak_mib(first, measured, device)
        rows.append({"system": system, "policies": policies, "pass_tokens": tokens, "extra_mib": peak})

    def batch(prefix: int, policies: int) -> Batch:
        return draw_batch(shape.vocab, prefix, given.suffix, policies, 0)

    model = peft_model(base, spec)
    small, whole = (PeftTrainer(model, adapters[0], batch(prefix, 1), scratch) for prefix in (16, given.prefix))
    add("peft", 1, PASS_TOKENS, small.step, whole.step)
    del model, small, whole
    short = few * given.suffix
    for policies, tokens in ((1, PASS_TOKENS), (given.policies, PASS_TOKENS), (few, short), (given.policies, short)):
        gc.collect()
        packed = PackedTrainer(base, adapters[:policies], batch(16, policies), scratch, tokens)
        add("packed", policies, tokens, packed.step, packed.on(batch(given.prefix, policies)).step)
        packed.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="27m")
    parser.add_argument("--prefix", type=int, default=500)
    parser.add_argument("--suffix", type=int, default=32)
    parser.add_argument("--policies", type=int, default=100)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    return_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        rows = step_rows(given, Path(scratch))
    for row in rows:
        sys.stdout.write(f"{row['system']:8}{row['policies']:5}{row['pass_tokens']:7}{row['extra_mib']:9.0f} MiB\n")
    if given.out:
        settings = {name: value for name, value in vars(given).items() if name != "out"}
        results = {"environment": describe_environment(), "settings": settings, "rows": rows}
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
