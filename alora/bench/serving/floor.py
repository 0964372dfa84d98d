"""What this machine could do at best: arithmetic over its measured matmul rate, bytes over its measured bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from alora.bench.flops import FlopCount
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.material import Material

_COPIED = 256 * 1024**2  # bytes, several times a last-level cache
_REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """Best measured rates: FLOPs a second in the base's dtype on its own matrices, bytes a second of a copy."""

    flops: float
    bytes: float


def measure_machine(material: Material, clock: BenchClock) -> Machine:
    """The best of a few repeats, which is kind to the floor: it can only look further away."""
    device, dtype, shape = material.model.device, material.model.dtype, material.shape
    tokens = 2048 if device.type == "cpu" else 8192
    x_TD = torch.randn(tokens, shape.hidden, device=device, dtype=dtype)
    w_DO = torch.randn(shape.hidden, shape.intermediate, device=device, dtype=dtype)
    source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matmul = min(_best(multiply, device, clock) for multiply in multiplications(x_TD, w_DO))
    copy = _best(lambda: target.copy_(source), device, clock)
    return Machine(2 * tokens * shape.hidden * shape.intermediate / matmul, 2 * _COPIED / copy)


def multiplications(x_TD: torch.Tensor, w_DO: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """Every kernel that an arm may multiply matrices by: torch's own, and on a CPU oneDNN's, which vLLM calls. On some
    processors one is twice as fast as the other, and a floor of the slower one would be none.
    """
    found = [lambda: x_TD @ w_DO]
    if x_TD.device.type == "cpu" and x_TD.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        x, w = x_TD.to_mkldnn(), w_DO.t().contiguous().to_mkldnn()
        found.append(lambda: torch.ops.aten.mkldnn_linear(x, w))
    return found


def _best(run: Callable[[], object], device: torch.device, clock: BenchClock) -> float:
    run()
    found = []
    for _ in range(_REPEATS):
        _finish(device)
        start = clock.now()
        run()
        _finish(device)
        found.append(clock.now() - start)
    return max(min(found), time.get_clock_info("process_time").resolution)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Floors:
    """Least seconds of a cold battery of one output token, per arm."""

    material: Material
    machine: Machine

    def of(self, arm: str, length: int, adapters: int) -> float:
        """Seconds below which no implementation of this arm can come with this arithmetic and these bytes."""
        material, shape = self.material, self.material.shape
        spec = material.adapters[0].spec
        count = FlopCount(shape, spec.rank, spec.targets)
        suffix = len(material.policy_texts[0] if arm == "base" else material.suffixes[0])
        labels = len(material.labels[0])
        if arm == "lora":
            flops = adapters * count.lora_prefill(length, suffix)
        elif arm == "base":
            bare = FlopCount(shape, 0, spec.targets)
            flops = bare.prefix(length) + adapters * bare.scored_suffix(length, suffix, labels)
        else:
            flops = count.prefix(length) + adapters * count.scored_suffix(length, suffix, labels)
        return max(flops / self.machine.flops, self._bytes(arm, length, adapters) / self.machine.bytes)

    def behind(self, arm: str, length: int, adapters: int, suffix: int | None = None) -> float:
        """The same where the prefix is there already: the suffixes alone, or ``suffix`` tokens of each.

        The prefix's keys and values are not counted: a small one may never leave the processor's cache.
        """
        material = self.material
        spec = material.adapters[0].spec
        whole = len(material.policy_texts[0] if arm == "base" else material.suffixes[0])
        count = FlopCount(material.shape, 0 if arm == "base" else spec.rank, spec.targets)
        tail = whole if suffix is None else suffix
        flops = adapters * count.scored_suffix(length, tail, len(material.labels[0]))
        return max(flops / self.machine.flops, self._weights(arm, adapters) / self.machine.bytes)

    def _bytes(self, arm: str, length: int, adapters: int) -> float:
        """The base's weights once, each adapter once, and the prefix's keys and values once per policy."""
        shared = 0 if arm == "lora" else adapters * kv_bytes(self.material) * length
        return self._weights(arm, adapters) + shared

    def _weights(self, arm: str, adapters: int) -> float:
        size = self.material.model.dtype.itemsize
        adapter = sum(a.numel() + b.numel() for a, b in self.material.adapters[0].tensors.values()) * size
        return self.material.shape.parameters * size + (0 if arm == "base" else adapters * adapter)


def kv_bytes(material: Material) -> int:
    """Bytes of one token's keys and values in all layers."""
    shape = material.shape
    return 2 * shape.layers * shape.kv_heads * shape.width * material.model.dtype.itemsize
