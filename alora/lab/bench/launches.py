"""Kernels that a step would launch on a GPU, counted on a CPU at any size.

Every operator below autograd that is neither a view nor an allocation counts as one launch: a product, a cast, a copy,
a pointwise operator, a fused attention. Shapes do not matter, so the base is tiny; launches a layer are the slope
between two depths.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from alora.lab.bench.shapes import BaseShape, random_base
from alora.lab.bench.trials import Launches
from alora.prefix import flash, norms

FREE = frozenset({  # views and allocations
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "slice", "select", "unsqueeze", "squeeze", "expand",
    "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "lift_fresh", "_reshape_alias", "unfold", "diagonal", "is_same_size", "view_as",
    "_local_scalar_dense", "item", "is_nonzero", "numpy_T", "chunk", "tensor_split", "set_", "resize_",
})  # fmt: skip
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"})
DEPTHS, VOCABULARY = (3, 5), 211
FAMILIES = ("qwen3", "llama")


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
