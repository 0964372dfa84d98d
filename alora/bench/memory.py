"""Peak memory of one training step: each arm in a process of its own, because a high-water mark never falls.

What is counted is what a step needs beyond the weights, the adapters and their gradients: the mark is set back after a
first step has made those. On CPU it is the resident set (``VmHWM`` of ``/proc``), on a GPU the allocator's peak.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm, peft_model
from alora.bench.shapes import SHAPES, random_base
from alora.bench.workload import draw_adapter, draw_workload
from alora.errors import BaseError

_MIB = 1024**2
# glibc otherwise keeps freed memory, so that the resident set would follow its habits and not the arm's need.
_RETURN_FREED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class MemoryCase:
    """One arm to weigh: ``peft`` or ``packed``. ``chunk`` bounds the suffix tokens of a packed pass."""

    arm: str
    shape: str
    prefix: int
    suffix: int
    policies: int
    chunk: int
    rank: int
    targets: tuple[str, ...]
    device: str
    dtype: str
    seed: int
    threads: int
    quantized: bool = False


def extra_peak(case: MemoryCase) -> float:
    """MiB that a step of ``case`` needs at its peak, measured in a fresh process.

    Raises:
        BaseError: the process failed; most likely memory ran out.
    """
    command = [sys.executable, "-m", "alora.bench.memory", json.dumps(asdict(case))]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | _RETURN_FREED)
    if result.returncode != 0:
        raise BaseError(
            f"measuring the memory of {case.arm} at {case.prefix}/{case.suffix} failed with exit code "
            f"{result.returncode}: {result.stderr.strip()[-300:]}; turn it off with bench.memory=false"
        )
    return json.loads(result.stdout.splitlines()[-1])["extra_mib"]


def _weigh(case: MemoryCase) -> float:
    torch.set_num_threads(case.threads)
    device, dtype = torch.device(case.device), getattr(torch, case.dtype)
    shape = SHAPES[case.shape]
    base = random_base(shape, device, dtype, case.seed, case.quantized)
    adapters = [draw_adapter(base, case.rank, case.targets, case.seed + policy) for policy in range(case.policies)]
    workload = draw_workload(shape, case.prefix, case.suffix, case.policies, case.seed)
    small = draw_workload(shape, 16, case.suffix, case.policies, case.seed)
    with tempfile.TemporaryDirectory() as scratch:
        if case.arm == "peft":
            model = peft_model(base, adapters[0].spec)
            del base
            steps = [PeftArm("peft", model, adapters[0], each, policy=0) for each in (small, workload)]
        else:
            first = PackedArm("packed", base, adapters, small, Path(scratch), case.chunk)
            steps = [first, first.on(workload)]
        steps[0].step()  # makes the gradients, and what libraries set up once
        gc.collect()
        before = _set_back(device)
        steps[1].step()
        return (_peak(device) - before) / _MIB


def _set_back(device: torch.device) -> int:
    """Forget the high-water mark; the bytes that are in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no {key}")
    return int(found[1]) * 1024


def main() -> None:
    """Entry of the process: one case as JSON in, one line of JSON out."""
    fields = json.loads(sys.argv[1])
    case = MemoryCase(**{**fields, "targets": tuple(fields["targets"])})
    sys.stdout.write(json.dumps({"extra_mib": _weigh(case)}) + "\n")


if __name__ == "__main__":
    main()
