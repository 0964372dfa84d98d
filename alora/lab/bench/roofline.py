"""What this machine could do at best: arithmetic over its measured matmul rate, bytes over its measured bandwidth.

One multiply-add counts two. Counted are the matrix products: the base's linear layers, attention over the pairs of
positions that see each other, the adapters and the head. Left out are norms, softmax and the rotary embedding, which
all ways have in the same proportion.

- Backward through a frozen linear layer is one product (the gradient of its input) where forward is one.
- Attention is two products forward and five backward; through a constant prefix three, because the gradients of its
  keys and values are not needed.
- An adapter is one product forward and two backward per factor.
- The first layer's input is an embedding without gradient, which saves its q, k and v a product.
- Of the last layer ours runs attention and the MLP on the rows that are read alone: one of a suffix, and of a prefix
  one in the MLP and none in attention. The full-sequence ways run all of it, as their models come.

Kernels that a step would launch on a GPU are counted on a CPU at any size: every operator below autograd that is
neither a view nor an allocation counts as one launch. Shapes do not matter, so the base is tiny; launches a layer are
the slope between two depths.
"""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from alora.lab.bench.harness import Clock
from alora.lab.bench.material import BenchBase, Material, adapted
from alora.lab.bench.record import Machine
from alora.lab.bench.shapes import BaseShape, random_base
from alora.lab.bench.trials import READS_TEXT, Launches
from alora.prefix import flash, norms

FORWARD, _BACKWARD, _BACKWARD_PREFIX = 2, 5, 3  # products of attention
_READ_INPUT = ("q_proj", "k_proj", "v_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_COPIED = 256 * 1024**2  # bytes, several times a last-level cache
_REPEATS = 5
FREE = frozenset({  # views and allocations
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "slice", "select", "unsqueeze", "squeeze", "expand",
    "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "lift_fresh", "_reshape_alias", "unfold", "diagonal", "is_same_size", "view_as",
    "_local_scalar_dense", "item", "is_nonzero", "numpy_T", "chunk", "tensor_split", "set_", "resize_",
})  # fmt: skip
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
DEPTHS, VOCABULARY = (3, 5), 211
FAMILIES = ("qwen3", "llama")


@dataclass(frozen=True)
class FlopCount:
    shape: BaseShape
    rank: int
    targets: Sequence[str]

    def _token(self, modules: Collection[str], base: int = 1, own: int = 1) -> int:
        """Of a token in some modules of one layer: ``base`` products with weights, ``own`` with adapters."""
        sizes = {name: size for name, size in self.shape.linears.items() if name in modules}
        weights, factors = map(math.prod, sizes.values()), (sum(sizes[name]) for name in self.targets if name in sizes)
        return 2 * (base * sum(weights) + own * self.rank * sum(factors))

    @property
    def linear(self) -> int:
        return self.shape.layers * self._token(self.shape.linears, own=0)

    @property
    def adapter(self) -> int:
        return self.shape.layers * self._token(self.shape.linears, base=0)

    def attention(self, seen: int, products: int, layers: int | None = None) -> int:
        """``products`` matrix products over ``seen`` pairs (query position, key position); of all layers, or some."""
        layers = self.shape.layers if layers is None else layers
        return 2 * products * layers * self.shape.heads * self.shape.width * seen

    def _trimmed(self, seen: int, read: int, products: int) -> int:
        return self.attention(seen, products, self.shape.layers - 1) + self.attention(read, products, 1)

    def head(self, rows: int, tokens: int) -> int:
        """Forward and backward of the head: logits of ``tokens`` vocabulary entries at ``rows`` positions."""
        return 4 * rows * tokens * self.shape.hidden

    def _trained(self, tokens: int, suffix: int) -> int:
        """The linear layers forward and backward, without the gradient of the first layer's input."""
        return tokens * (2 * self.linear - self._token(_READ_INPUT, own=0)) + 3 * suffix * self.adapter

    def full_sequence(self, prefix: int, suffix: int) -> int:
        """Training one pair over the whole prompt; logits of the vocabulary at its end."""
        seen = causal(prefix + suffix)
        layers = self._trained(prefix + suffix, suffix) + self.attention(seen, FORWARD + _BACKWARD)
        return layers + self.head(1, self.shape.vocab)

    def prefix(self, prefix: int) -> int:
        """The shared part: the base's forward over the prefix, without gradient."""
        trimmed = self._trimmed(causal(prefix), 0, FORWARD) - (prefix - 1) * self._token(_MLP, own=0)
        return prefix * self.linear + trimmed

    def trained_suffix(self, prefix: int, suffix: int, labels: int) -> int:
        """Training one pair behind a prefix that is there already; the floor of a pair when P goes to infinity."""
        layers = self._trained(suffix, suffix) - (suffix - 1) * self._token(_MLP, 2, 3)
        own = self._trimmed(causal(suffix), suffix, FORWARD + _BACKWARD)
        shared = self._trimmed(suffix * prefix, prefix, FORWARD + _BACKWARD_PREFIX)
        return layers + own + shared + self.head(1, labels)

    def packed(self, prefix: int, suffix: int, labels: int, policies: int) -> float:
        return self.prefix(prefix) / policies + self.trained_suffix(prefix, suffix, labels)

    def lora_prefill(self, prefix: int, suffix: int, cached: int = 0) -> int:
        """Scoring one standard LoRA, adapted from token 0: the prompt behind ``cached`` tokens, logits at its end."""
        tokens = prefix + suffix
        seen = causal(tokens) - causal(cached)
        forward = (tokens - cached) * (self.linear + self.adapter) + self.attention(seen, FORWARD)
        return forward + self.head(1, self.shape.vocab) // 2

    def scored_suffix(self, prefix: int, suffix: int, labels: int) -> int:
        """Scoring one adapter behind a prefix that is there already."""
        layers = suffix * (self.linear + self.adapter) - (suffix - 1) * self._token(_MLP)
        seen = suffix * prefix + causal(suffix)
        return layers + self._trimmed(seen, prefix + suffix, FORWARD) + self.head(1, labels) // 2


def causal(tokens: int) -> int:
    """Pairs of positions that see each other."""
    return tokens * (tokens + 1) // 2


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
    some processors one is twice as fast as the other."""
    kernels: dict[str, Callable[[], torch.Tensor]] = {"torch": lambda: x_TD @ w_DO}
    if x_TD.device.type == "cpu" and x_TD.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        x, w = x_TD.to_mkldnn(), w_DO.t().contiguous().to_mkldnn()
        kernels["onednn"] = lambda: torch.ops.aten.mkldnn_linear(x, w)
    return kernels


def _best(run: Callable[[], object], clock: Clock) -> float:
    run()
    return max(min(clock.time(run)[1] for _ in range(_REPEATS)), time.get_clock_info("process_time").resolution)


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
        bare, read_base, flops = FlopCount(self.material.base.shape, 0, ()), system in READS_TEXT, 0
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


class LaunchCount(TorchDispatchMode):
    """Counts what runs inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.waits = self.from_python = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if torch.is_inference_mode_enabled() and composite:  # there such an operator comes whole
            with self:
                returned = func.decompose(*args, **kwargs)
            if returned is not NotImplemented:
                return returned
        self.launches += func.namespace in ("aten", "prim") and name not in FREE
        self.from_python += name == "lift_fresh"
        masks = args[1] if name in INDEXING else ()  # a boolean index asks the GPU how many are true
        by_mask = any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in masks)
        self.waits += by_mask or name in ("_local_scalar_dense", "is_nonzero", "nonzero")
        return func(*args, **kwargs)


class _OneKernel(torch.autograd.Function):
    """A norm's launches on a GPU, while a CPU takes it apart; the numbers are others, which no count depends on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        return grads[0].clone(), None


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """The kernels that CUDA takes: attention's fused backward, and ``rms_norm`` as one."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (flash, "BACKWARD_ON", frozenset({*flash.BACKWARD_ON, "cpu"})),
            (norms, "FUSED_ON", frozenset({"cpu"})),
            (norms, "_is_plain", lambda module: True),
            (torch.nn.functional, "rms_norm", lambda x, shape, weight, eps: _OneKernel.apply(x, weight)),
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def launches_a_layer(step_on: Callable[[PreTrainedModel], Callable[[], object]], family: str = "qwen3") -> Launches:
    """``step_on`` makes a step on a base in bfloat16, of which each layer has what a real one has."""
    counts = []
    for layers in DEPTHS:
        shape = BaseShape(VOCABULARY, 64, 96, layers=layers, heads=4, kv_heads=2, width=16, family=family)
        with as_on_a_gpu():  # a model chooses its kernels as it is made
            step = step_on(random_base(shape, torch.device("cpu"), torch.bfloat16, 0))
            step()  # makes what all later ones use
            with LaunchCount() as count:
                step()
        counts.append((count.launches, count.waits, count.from_python))
    return Launches(*((b - a) / (DEPTHS[1] - DEPTHS[0]) for a, b in zip(*counts, strict=True)))


def tiny_ids(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(token % VOCABULARY for token in ids)
