"""What glibc does with freed memory, which decides figures of time and of memory; and the peak of a training step."""

import contextlib
import ctypes
import gc
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from alora.errors import BaseError, first_line

_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1  # glibc's names


def keep_freed_memory() -> None:
    """Keep all of it. By default glibc maps each block beyond 32 MiB anew, and vLLM's LoRA kernel on CPU takes a larger
    one in each call of a long step, whose page faults would count as standard LoRA's own.
    """
    _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})


def return_freed_memory() -> None:
    """Give it back at once: the resident set otherwise follows glibc's habits and not the need of what runs."""
    _set({_MMAP_THRESHOLD: 65536, _TRIM_THRESHOLD: 65536})


def in_fresh_process(run: Callable[..., Any], *args: Any) -> Any:
    """``run(...)`` where nothing was freed before: a step that fits into what a process has kept shows no need.

    Raises:
        BaseError: the process failed; most likely memory ran out.
    """
    fresh = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, fresh, initializer=return_freed_memory) as pool:
            return pool.submit(run, *args).result()
    except Exception as error:
        text = f"measuring the memory of a step failed ({first_line(error)}); turn it off with bench.memory=false"
        raise BaseError(text) from error


def extra_peak_mib(first: Callable[[], object], measured: Callable[[], object], device: torch.device) -> float:
    """MiB that the step ``measured`` needs at its peak, beyond the weights, the adapters and their gradients.

    The step ``first`` makes the gradients, and what libraries set up once. On a GPU it is the allocator's peak, on CPU
    the resident set's.
    """
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


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        for name, value in options.items():
            libc.mallopt(name, value)
