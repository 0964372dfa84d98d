"""What glibc does with freed memory, by the page faults of the gather that vLLM's LoRA kernel on CPU makes."""

import resource

import pytest
import torch

from alora.lab.bench.systems import keep_freed_memory
from tests.forked import call_forked

ROWS, RANK, WIDTH = 512, 8, 1536  # 24 MiB


def _faults() -> int:
    weights, index = torch.randn(8, RANK, WIDTH), torch.zeros(ROWS, dtype=torch.long)
    for _ in range(3):
        weights[index].sum()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        weights[index].sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _before_and_after(unused: None) -> tuple[int, int]:
    before = _faults()
    keep_freed_memory()
    return before, _faults()


def test_a_gather_does_not_fault_in_each_call():
    before, after = call_forked(_before_and_after, None)
    if before < 1000:
        pytest.skip("this C library, or huge pages, spare the faults already")
    assert after < before / 2  # one call of the four may still grow the heap
