"""What glibc does with memory that is freed: it decides figures of time and of memory, so a benchmark says which."""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -4, -3, -1  # glibc's names


def keep_freed_memory() -> None:
    """Keep all of it. By default glibc maps each block beyond 32 MiB anew, and vLLM's LoRA kernel on CPU takes a larger
    one in each call of a long step, whose page faults would count as standard LoRA's own.
    """
    _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})


def return_freed_memory() -> None:
    """Give it back at once: the resident set otherwise follows glibc's habits and not the need of what runs."""
    _set({_MMAP_THRESHOLD: 65536, _TRIM_THRESHOLD: 65536})


def _set(options: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        for name, value in options.items():
            libc.mallopt(name, value)
