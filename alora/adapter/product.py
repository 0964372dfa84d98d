"""``y + s B A x``, policy by policy, in few kernels: what a bank adds to one linear layer.

With ``h = x A^T`` and ``dh = dy B``,

    y' = y + s h B^T,     dx = s dh A,     dA = s dh^T x,     dB = s dy^T h.

``dA`` and ``dB`` are added to ``.grad`` in place, in the slices of the pass's policies alone: autograd's gradient of
an index is as large as the whole bank. Where all policies scale alike, ``s`` is an argument of the products.

Shapes: P policies, M rows of a policy, N packed rows, R rank, D in, O out.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Chosen = slice | torch.Tensor


@dataclass(frozen=True)
class Scaling:
    """``s`` of the policies: one number, or one of each in ``of_P11``."""

    alpha: float
    of_P11: torch.Tensor | None

    def times(self, hidden_PMR: torch.Tensor) -> torch.Tensor:
        """Multiply in place by what ``alpha`` does not hold."""
        return hidden_PMR if self.of_P11 is None else hidden_PMR.mul_(self.of_P11)


class AddProduct(torch.autograd.Function):
    """``AddProduct.apply(x_PMD, y_1NO, a_PRD, b_POR, scaling, route)``; ``y`` keeps its dtype, rounded once."""

    @staticmethod
    def forward(ctx: Any, x_PMD, y_1NO, a_PRD, b_POR, scaling: Scaling, route: Any) -> torch.Tensor:
        hidden_PMR = scaling.times(torch.bmm(x_PMD, _of(a_PRD, route).transpose(1, 2)))
        delta_NO = route.gather(torch.bmm(hidden_PMR, _of(b_POR, route).transpose(1, 2)))
        ctx.save_for_backward(x_PMD, hidden_PMR)
        ctx.a_PRD, ctx.b_POR, ctx.scaling, ctx.route = a_PRD, b_POR, scaling, route
        return torch.add(y_1NO, delta_NO[None], alpha=scaling.alpha, out=torch.empty_like(y_1NO))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        (x_PMD, hidden_PMR), route, scaling = ctx.saved_tensors, ctx.route, ctx.scaling
        dy_PMO = route.scatter(grads[0].squeeze(0).to(x_PMD.dtype))
        dhidden_PMR = scaling.times(torch.bmm(dy_PMO, _of(ctx.b_POR, route)))
        _add_gradient(ctx.a_PRD, route, dhidden_PMR.transpose(1, 2), x_PMD, scaling.alpha)
        _add_gradient(ctx.b_POR, route, dy_PMO.transpose(1, 2), hidden_PMR, scaling.alpha)
        dx_PMD = _product(dhidden_PMR, _of(ctx.a_PRD, route), scaling.alpha) if ctx.needs_input_grad[0] else None
        return dx_PMD, grads[0], None, None, None, None


def _of(whole_P: torch.Tensor, route: Any) -> torch.Tensor:
    """The weights of the route's policies; a view where they follow each other."""
    return whole_P.detach() if len(route.policies) == len(whole_P) else whole_P.detach()[route.chosen]


def _product(left: torch.Tensor, right: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0, alpha=alpha)  # beta=0: the first is not read


def _add_gradient(whole_P: torch.Tensor, route: Any, left: torch.Tensor, right: torch.Tensor, alpha: float) -> None:
    if not whole_P.requires_grad:
        return
    if whole_P.grad is None and len(route.policies) == len(whole_P):
        whole_P.grad = _product(left, right, alpha)
        return
    if whole_P.grad is None:
        whole_P.grad = torch.zeros_like(whole_P)
    if isinstance(route.chosen, slice):
        whole_P.grad[route.chosen].baddbmm_(left, right, alpha=alpha)
    else:
        whole_P.grad.index_add_(0, route.chosen, torch.bmm(left, right), alpha=alpha)
