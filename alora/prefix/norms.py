"""One kernel for a norm instead of ten, on devices where launches dominate.

transformers' RMSNorm is a chain of elementwise kernels, each a launch, forward and backward: on a GPU a third of a
training step's launches. ``rms_norm`` is one kernel each way. It rounds once where the chain rounds twice, for the base
and every adapter on it alike, because the base's own modules are changed.
"""

from types import MethodType
from typing import Any

import torch
from torch import nn

FUSED_ON = frozenset({"cuda"})


def fuse_norms(base: nn.Module) -> int:
    """Let the RMSNorms of ``base`` that compute ``x / rms(x) * weight`` run as one kernel; return how many do."""
    found = [module for module in base.modules() if type(module).__name__.endswith("RMSNorm") and _is_plain(module)]
    for module in found:
        module.forward = MethodType(_forward, module)  # a method, so that a copy of the base has its own
    return len(found)


def _epsilon(module: Any) -> float | None:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _forward(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(hidden_states, module.weight.shape, module.weight, _epsilon(module))


@torch.no_grad()
def _is_plain(module: nn.Module) -> bool:
    """Whether ``module`` computes what ``rms_norm`` does: Gemma's, say, adds 1 to the weight."""
    weight, epsilon = getattr(module, "weight", None), _epsilon(module)
    if not isinstance(weight, torch.Tensor) or weight.device.type not in FUSED_ON or epsilon is None:
        return False
    x = torch.linspace(-3, 3, weight.numel(), dtype=weight.dtype, device=weight.device).view(1, 1, *weight.shape)
    bound = 0.02 if weight.dtype in (torch.bfloat16, torch.float16) else 1e-5
    return torch.allclose(_forward(module, x), module(x), rtol=bound, atol=bound)
