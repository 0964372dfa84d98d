"""Peak memory of one training step: each system in a process of its own, because a high-water mark never falls.

What is counted is what a step needs beyond the weights, the adapters and their gradients: the mark is set back after a
first step has made those. On CPU it is the resident set (``VmHWM`` of ``/proc``), on a GPU the allocator's peak.
"""

from __future__ import annotations

import gc
import multiprocessing
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from alora.bench.baselines import PeftTrainer, peft_model
from alora.bench.malloc import return_freed_memory
from alora.bench.material import BenchBase, adapter_spec, random_adapter
from alora.bench.packed import PackedTrainer, TrainingPrompts
from alora.bench.record import MemoryRow
from alora.bench.shapes import BaseShape, random_base
from alora.config.schema import BenchSettings
from alora.errors import BaseError, first_line


@dataclass(frozen=True)
class MemoryCase:
    """One system to weigh: ``peft`` or ``packed``. ``pass_tokens`` bounds the suffix tokens of a packed pass."""

    system: str
    policies: int
    pass_tokens: int
    prefix: int
    device: torch.device
    dtype: torch.dtype
    shape: BaseShape
    settings: BenchSettings
    quantized: bool = False


def measure_memory(settings: BenchSettings, base: BenchBase, quantized: bool, pass_tokens: int) -> list[MemoryRow]:
    """PEFT, the packed step alone, and few and many policies in passes of one size: memory follows the pass."""
    most = max(settings.policies)
    few = min(8, most)
    cases = [("peft", 1, pass_tokens), ("packed", 1, pass_tokens), ("packed", most, pass_tokens)]
    cases += [("packed", count, few * settings.suffix) for count in (few, most)]
    where = settings.prefixes[0], base.model.device, base.model.dtype, base.shape
    return [MemoryRow(*case, extra_peak(MemoryCase(*case, *where, settings, quantized))) for case in cases]


def extra_peak(case: MemoryCase) -> float:
    """MiB that a step of ``case`` needs at its peak, measured in a fresh process.

    Raises:
        BaseError: the process failed; most likely memory ran out.
    """
    fresh = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, fresh, initializer=return_freed_memory) as pool:
            return pool.submit(weigh, case).result()
    except Exception as error:
        raise BaseError(
            f"measuring the memory of {case.system} at prefix {case.prefix} failed ({first_line(error)}); turn it off "
            "with bench.memory=false"
        ) from error


def weigh(case: MemoryCase) -> float:
    """MiB of ``case`` in this process."""
    settings, device = case.settings, case.device
    torch.set_num_threads(settings.threads)
    base = random_base(case.shape, device, case.dtype, settings.seed, case.quantized)
    spec = adapter_spec(settings, case.shape)
    adapters = [random_adapter(spec, base, settings.seed + policy) for policy in range(case.policies)]
    small, prompts = (
        TrainingPrompts.draw(case.shape.vocab, prefix, settings.suffix, case.policies, settings.seed)
        for prefix in (16, case.prefix)
    )
    with tempfile.TemporaryDirectory() as scratch:
        if case.system == "peft":
            model = peft_model(base, spec)
            del base
            steps = [PeftTrainer(model, adapters[0], each, Path(scratch)) for each in (small, prompts)]
        else:
            first = PackedTrainer(base, adapters, small, Path(scratch), case.pass_tokens)
            steps = [first, first.on(prompts)]
        steps[0].step()  # makes the gradients, and what libraries set up once
        gc.collect()
        before = _set_back(device)
        steps[1].step()
        return (_peak(device) - before) / 2**20


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
