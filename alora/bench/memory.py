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
from pathlib import Path
from typing import Any

import torch

from alora.bench.baselines import PeftTrainer, peft_model
from alora.bench.malloc import return_freed_memory
from alora.bench.material import BenchBase, adapter_spec, random_adapter
from alora.bench.packed import PackedTrainer, TrainingPrompts
from alora.bench.record import MemoryRow
from alora.bench.shapes import BaseShape, random_base
from alora.config.schema import BenchSettings
from alora.errors import BaseError, first_line


def measure_memory(settings: BenchSettings, base: BenchBase, quantized: bool, pass_tokens: int) -> list[MemoryRow]:
    """PEFT, the packed step alone, and few and many policies in passes of one size: memory follows the pass."""
    most = max(settings.policies)
    few = min(8, most)
    cases = [("peft", 1, pass_tokens), ("packed", 1, pass_tokens), ("packed", most, pass_tokens)]
    cases += [("packed", count, few * settings.suffix) for count in (few, most)]
    where = base.shape, base.model.device, base.model.dtype, quantized
    return [MemoryRow(*case, extra_peak(*case, settings, *where)) for case in cases]


def extra_peak(system: str, *case: Any) -> float:
    """MiB that a step needs at its peak, by :func:`weigh` in a fresh process.

    Raises:
        BaseError: the process failed; most likely memory ran out.
    """
    fresh = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, fresh, initializer=return_freed_memory) as pool:
            return pool.submit(weigh, system, *case).result()
    except Exception as error:
        text = f"measuring the memory of {system} failed ({first_line(error)}); turn it off with bench.memory=false"
        raise BaseError(text) from error


def weigh(
    system: str, policies: int, pass_tokens: int, settings: BenchSettings, shape: BaseShape, device: torch.device,
    dtype: torch.dtype, quantized: bool = False,
) -> float:  # fmt: skip
    """MiB in this process: ``peft`` or ``packed``, with at most ``pass_tokens`` suffix tokens in a packed pass."""
    torch.set_num_threads(settings.threads)
    base, spec = random_base(shape, device, dtype, settings.seed, quantized), adapter_spec(settings, shape)
    adapters = [random_adapter(spec, base, settings.seed + policy) for policy in range(policies)]
    small, prompts = (
        TrainingPrompts.draw(shape.vocab, prefix, settings.suffix, policies, settings.seed)
        for prefix in (16, settings.prefixes[0])
    )
    with tempfile.TemporaryDirectory() as scratch:
        if system == "peft":
            model = peft_model(base, spec)
            del base
            steps = [PeftTrainer(model, adapters[0], each, Path(scratch)) for each in (small, prompts)]
        else:
            first = PackedTrainer(base, adapters, small, Path(scratch), pass_tokens)
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
