"""Kernels that a step or a scoring pass would launch on a GPU, counted on a CPU at toy size.

Every aten operator below autograd that is neither a view nor an allocation is a launch. Shapes do not matter, so a
layer's launches are the slope between two depths.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from alora.bench.shapes import BaseShape, random_base
from alora.prefix import flash, norms

FREE = frozenset({  # views and allocations
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "slice", "select", "unsqueeze", "squeeze", "expand",
    "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "lift_fresh", "_reshape_alias", "unfold", "diagonal", "is_same_size", "view_as",
    "_local_scalar_dense", "item", "is_nonzero", "chunk", "tensor_split", "set_", "resize_",
})  # fmt: skip
DEPTHS = (3, 5)


class Count(TorchDispatchMode):
    """Launches inside the block, and what stops the host: a number that is read, a tensor that is made from Python."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.stops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        whole = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if whole and torch.is_inference_mode_enabled():  # what autograd would have taken apart
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        masked = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(map(_mask, args[1]))
        self.launches += name not in FREE
        self.stops += masked or name in ("_local_scalar_dense", "is_nonzero", "nonzero", "lift_fresh")
        return func(*args, **kwargs)


def _mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


class _OneKernel(torch.autograd.Function):
    """A norm's launches on a GPU; the numbers are others, which no count depends on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        return grads[0].clone(), None


@contextmanager
def as_on_a_gpu(monkeypatch):
    """The kernels that CUDA takes. ``rms_norm`` is one there, while a CPU takes it apart."""
    with monkeypatch.context() as patch:
        patch.setattr(flash, "BACKWARD_ON", frozenset({"cuda", "cpu"}))
        patch.setattr(norms, "FUSED_ON", frozenset({"cpu"}))
        patch.setattr(norms, "_is_plain", lambda module: True)
        patch.setattr(torch.nn.functional, "rms_norm", lambda x, shape, weight, eps: _OneKernel.apply(x, weight))
        yield


def a_layer(step_on: Callable[[Any], Callable[[], object]], monkeypatch) -> tuple[float, float]:
    """Launches and stops of one layer, in a second call of the step that ``step_on`` makes of a base."""
    found = []
    for layers in DEPTHS:
        shape = BaseShape(vocab=211, hidden=64, intermediate=96, layers=layers, heads=4, kv_heads=2, width=16)
        with as_on_a_gpu(monkeypatch):
            step = step_on(random_base(shape, torch.device("cpu"), torch.bfloat16, 0))
            step()
            with Count() as count:
                step()
        found.append((count.launches, count.stops))
    low, high = found
    return (high[0] - low[0]) / (DEPTHS[1] - DEPTHS[0]), (high[1] - low[1]) / (DEPTHS[1] - DEPTHS[0])
