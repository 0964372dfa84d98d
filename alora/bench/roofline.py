"""What this machine could do at best: arithmetic over its measured matmul rate, bytes over its measured bandwidth."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from alora.bench.flops import FlopCount
from alora.bench.harness import Clock
from alora.bench.material import BenchBase, Material, adapted
from alora.bench.record import Machine
from alora.bench.trials import READS_TEXT

_COPIED = 256 * 1024**2  # bytes, several times a last-level cache
_REPEATS = 5


def measure_machine(base: BenchBase, clock: Clock) -> Machine:
    """The best of a few repeats, which is kind to every system: the roofline can only look further away."""
    device, shape, dtype = base.model.device, base.shape, base.model.dtype
    tokens = 2048 if device.type == "cpu" else 8192
    x_TD = torch.randn(tokens, shape.hidden, device=device, dtype=dtype)
    w_DO = torch.randn(shape.hidden, shape.intermediate, device=device, dtype=dtype)
    source = torch.empty(_COPIED, dtype=torch.uint8, device=device)
    target, work = torch.empty_like(source), 2 * tokens * shape.hidden * shape.intermediate
    rates = {name: work / _best(run, clock) for name, run in multiplications(x_TD, w_DO).items()}
    return Machine(rates, 2 * _COPIED / _best(lambda: target.copy_(source), clock))


def multiplications(x_TD: torch.Tensor, w_DO: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Every kernel that a system may multiply matrices by: torch's own, and on a CPU oneDNN's, which vLLM calls. On
    some processors one is twice as fast as the other.
    """
    kernels: dict[str, Callable[[], torch.Tensor]] = {"torch": lambda: x_TD @ w_DO}
    if x_TD.device.type == "cpu" and x_TD.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        x, w = x_TD.to_mkldnn(), w_DO.t().contiguous().to_mkldnn()
        kernels["onednn"] = lambda: torch.ops.aten.mkldnn_linear(x, w)
    return kernels


def _best(run: Callable[[], object], clock: Clock) -> float:
    run()
    return max(min(clock.time(run)[0] for _ in range(_REPEATS)), time.get_clock_info("process_time").resolution)


@dataclass(frozen=True)
class Roofline:
    """Least seconds of a burst of one output token."""

    material: Material
    machine: Machine

    def seconds(self, system: str, tokens: int, policies: int, kept: int = 0, again: bool = False) -> float:
        """Seconds below which no implementation of this system can come with this arithmetic and these bytes.

        Args:
            policies: the first ones, each with its own rank, targets and suffix.
            kept: tokens of the conversation whose keys and values are in a cache already.
            again: the suffixes are there too, but for their last tokens.

        The base's weights and the adapters' are read once. Keys and values are not counted as bytes: small ones may
        never leave the processor's cache, and a kernel may read a shared prefix once for all.
        """
        bare, read_base = FlopCount(self.material.base.shape, 0, ()), system in READS_TEXT
        flops = 0
        if system != "lora":
            flops = bare.prefix(tokens) - (bare.prefix(kept) if kept else 0)
        for policy in range(policies):
            suffix = self.material.suffixes[policy]
            own = self.material.policy_texts[policy] if read_base else suffix.token_ids
            tail, count = 1 if again else len(own), bare if read_base else self._count(policy)
            if system == "lora":
                flops += count.lora_prefill(tokens, tail, kept)
            else:
                flops += count.scored_suffix(tokens, tail, len(suffix.label_token_ids))
        read = () if read_base else self.material.adapters[:policies]
        weights = sum(a.numel() + b.numel() for adapter in read for a, b in adapter.tensors.values())
        bytes_read = (self.material.base.shape.parameters + weights) * self.material.base.model.dtype.itemsize
        return max(flops / self.machine.flops, bytes_read / self.machine.bytes)

    def _count(self, policy: int) -> FlopCount:
        """With an adapter; one that leaves some layers out counts as none, which is kind to the system."""
        shape, adapter = self.material.base.shape, self.material.adapters[policy]
        targets = adapted(adapter) & set(shape.linears)
        whole = len(adapter.tensors) >= shape.layers * len(targets)
        return FlopCount(shape, adapter.spec.rank, tuple(sorted(targets))) if whole else FlopCount(shape, 0, ())
