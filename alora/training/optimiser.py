"""AdamW over a bank: one optimiser per policy, in one set of stacked tensors.

A bank's parameter holds P policies in its first dimension. Loshchilov and Hutter's AdamW (2019, algorithm 2; as in
``torch.optim.AdamW`` 2.13) is applied to each slice by itself, with a step count of its own:

    theta_p <- theta_p (1 - lr * decay) - lr * mhat_p / (sqrt(vhat_p) + eps),      mhat_p = m_p / (1 - beta1^t_p), ...

A policy without a row in a step has no gradient. In a stacked tensor that gradient would be zeros, and plain AdamW
would still apply momentum and weight decay and count a step; trained alone, the policy would have taken no step. So the
step leaves its slice unchanged, and its trajectory is the one that it has alone.

The learning rate is the run's: it follows the run's progress, not ``t_p``, since
how many steps of a run a policy will have rows in is not known before the rows are drawn.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn


class PolicyAdamW(torch.optim.Optimizer):
    """AdamW whose state and step count are each policy's own.

    Args:
        parameters: stacked parameters ``[P, ...]`` of one bank.
        lr: learning rate, the ``lr`` that schedulers write to.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, so it does not enter the moments.
        rates: what each policy's learning rate is multiplied by, asked in every step; None: 1.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rates: Callable[[], Sequence[float]] | None = None,
    ) -> None:
        self._rates = rates
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Move the policies that have a gradient.

        After a reduction over processes that is any policy with a row on any of them.
        """
        if closure is not None:
            raise ValueError("PolicyAdamW takes no closure")
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:  # no policy had a row
            return
        # Zeros in a stacked gradient: the policy had no row, and alone it would take no step.
        moved_P = torch.stack([p.grad.flatten(1).ne(0).any(1) for p in parameters]).any(0)
        rows = None if bool(moved_P.all()) else moved_P.nonzero().flatten()
        scale_P = self._scales(parameters[0], rows)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group, rows, scale_P)

    def _move(
        self, parameter: nn.Parameter, group: dict[str, Any], rows: torch.Tensor | None, scale_P: torch.Tensor | None
    ) -> None:
        """Move the slices ``rows`` of one parameter, their rates multiplied by ``scale_P``; None: all of them, by 1."""
        state, gradient, (beta1, beta2) = self.state[parameter], parameter.grad, group["betas"]
        assert gradient is not None
        if not state:
            state["steps_P"] = parameter.new_zeros(parameter.shape[0])  # of each policy: they bias-correct its moments
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        kept = (parameter.data, state["steps_P"], state["first"], state["second"])
        weights, steps_P, first, second = kept if rows is None else (whole.index_select(0, rows) for whole in kept)
        gradient = gradient if rows is None else gradient.index_select(0, rows)
        each = (-1, *[1] * (weights.dim() - 1))
        counts_P = steps_P.add_(1).double()  # beta2 ** t near 1 loses digits in float32
        lr = group["lr"] if scale_P is None else group["lr"] * scale_P
        # From here in the order of torch.optim.AdamW's single-tensor step.
        kept_share = 1 - lr * group["weight_decay"]
        weights.mul_(kept_share if scale_P is None else kept_share.view(each))
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate_P = (lr / (1 - beta1**counts_P)).to(weights.dtype)
        root_P = (1 - beta2**counts_P).sqrt().to(weights.dtype)
        spread = (second.sqrt() / root_P.view(each)).add_(group["eps"])
        weights.sub_(first / spread * rate_P.view(each))
        if rows is not None:
            for whole, part in zip(kept, (weights, steps_P, first, second), strict=True):
                whole.index_copy_(0, rows, part)

    def _scales(self, parameter: nn.Parameter, rows: torch.Tensor | None) -> torch.Tensor | None:
        """What the rates of the slices ``rows`` are multiplied by; None where that changes none."""
        scales = [] if self._rates is None else self._rates()
        if all(scale == 1.0 for scale in scales):
            return None
        scale_P = torch.tensor(scales, device=parameter.device, dtype=parameter.dtype)
        return scale_P if rows is None else scale_P.index_select(0, rows)

    @torch.no_grad()
    def forget(self, policies: Sequence[int]) -> None:
        """Reset the moments and step counts of some policies, whose weights were replaced."""
        for state in self.state.values():
            for held in state.values():
                held[list(policies)] = 0
