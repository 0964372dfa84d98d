"""What this machine could do at best: arithmetic over its measured matmul rate, bytes over its measured bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from alora.bench.flops import FlopCount
from alora.bench.serving.clock import BenchClock
from alora.bench.serving.material import Material, adapted

_COPIED = 256 * 1024**2  # bytes, several times a last-level cache
_REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """Best measured rates: FLOPs a second in the base's dtype on its own matrices, by the library that multiplies, and
    bytes a second of a copy.
    """

    kernels: Mapping[str, float]
    bytes: float

    @property
    def flops(self) -> float:
        """Of the fastest kernel."""
        return max(self.kernels.values())


def measure_machine(material: Material, clock: BenchClock) -> Machine:
    """The best of a few repeats, which is kind to the floor: it can only look further away."""
    device, dtype, shape = material.model.device, material.model.dtype, material.shape
    tokens = 2048 if device.type == "cpu" else 8192
    x_TD = torch.randn(tokens, shape.hidden, device=device, dtype=dtype)
    w_DO = torch.randn(shape.hidden, shape.intermediate, device=device, dtype=dtype)
    source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    work = 2 * tokens * shape.hidden * shape.intermediate
    kernels = {name: work / _best(run, device, clock) for name, run in multiplications(x_TD, w_DO).items()}
    copy = _best(lambda: target.copy_(source), device, clock)
    return Machine(kernels, 2 * _COPIED / copy)


def multiplications(x_TD: torch.Tensor, w_DO: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Every kernel that an arm may multiply matrices by: torch's own, and on a CPU oneDNN's, which vLLM calls. On some
    processors one is twice as fast as the other, and a floor of the slower one would be none.
    """
    found: dict[str, Callable[[], torch.Tensor]] = {"torch": lambda: x_TD @ w_DO}
    if x_TD.device.type == "cpu" and x_TD.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        x, w = x_TD.to_mkldnn(), w_DO.t().contiguous().to_mkldnn()
        found["onednn"] = lambda: torch.ops.aten.mkldnn_linear(x, w)
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
    """Least seconds of a battery of one output token, per arm."""

    material: Material
    machine: Machine

    def of(self, arm: str, length: int, adapters: int, cached: int = 0, suffix: int | None = None) -> float:
        """Seconds below which no implementation of this arm can come with this arithmetic and these bytes.

        Args:
            adapters: the first of the battery, each with its own rank, targets and suffix.
            cached: tokens of the prefix whose keys and values are there already; standard LoRA's are its own.
            suffix: tokens that are read behind the prefix, where the rest of the suffix is there too; None: all.

        The base's weights and the adapters' are read once. Keys and values are not counted as bytes: small ones may
        never leave the processor's cache, and a kernel may read a shared prefix once for all.
        """
        material = self.material
        flops = 0
        if arm != "lora":
            flops = self._bare.prefix(length) - (self._bare.prefix(cached) if cached else 0)
        for place in range(adapters):
            labels = len(material.labels[place])
            own = material.policy_texts[place] if arm == "base" else material.suffixes[place]
            tail = len(own) if suffix is None else suffix
            count = self._bare if arm == "base" else self._count(place)
            if arm == "lora":
                flops += count.lora_prefill(length, tail, cached)
            else:
                flops += count.scored_suffix(length, tail, labels)
        return max(flops / self.machine.flops, self._weights(arm, adapters) / self.machine.bytes)

    @property
    def _bare(self) -> FlopCount:
        return FlopCount(self.material.shape, 0, ())

    def _count(self, place: int) -> FlopCount:
        """With an adapter; one that leaves some layers out counts as none, which is kind to the arm."""
        shape, adapter = self.material.shape, self.material.adapters[place]
        targets = adapted(adapter) & set(shape.linears)
        whole = len(adapter.tensors) >= shape.layers * len(targets)
        return FlopCount(shape, adapter.spec.rank, tuple(sorted(targets))) if whole else self._bare

    def _weights(self, arm: str, adapters: int) -> float:
        read = [] if arm == "base" else self.material.adapters[:adapters]
        sizes = (a.numel() + b.numel() for adapter in read for a, b in adapter.tensors.values())
        return (self.material.shape.parameters + sum(sizes)) * self.material.model.dtype.itemsize


def kv_bytes(material: Material) -> int:
    """Bytes of one token's keys and values in all layers."""
    shape = material.shape
    return 2 * shape.layers * shape.kv_heads * shape.width * material.model.dtype.itemsize
