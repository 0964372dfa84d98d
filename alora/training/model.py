"""The trained module: prefix KV from the base or the store, and the label logits of the suffixes behind it; and AdamW
over its bank: one optimiser per policy, in one set of stacked tensors.

A bank's parameter holds P policies in its first dimension. Loshchilov and Hutter's AdamW (2019, algorithm 2; as in
``torch.optim.AdamW`` 2.13) is applied to each slice by itself, with a step count of its own:

    theta_p <- theta_p (1 - lr * decay) - lr * mhat_p / (sqrt(vhat_p) + eps),      mhat_p = m_p / (1 - beta1^t_p), ...

A policy without a row in a step has no gradient. In a stacked tensor that gradient would be zeros, and plain AdamW
would still apply momentum and weight decay and count a step; trained alone, the policy would have taken no step. So the
step leaves its slice unchanged, and its trajectory is the one that it has alone. The learning rate is the run's: it
follows the run's progress, not ``t_p``, since how many steps of a run a policy will have rows in is not known before
the rows are drawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair, PrefixKV
from alora.prefix.store import PrefixStore
from alora.training.processes import ALONE, Processes


class SharedPrefixModel(nn.Module):
    """The module that the trainer trains: prefixes without gradient, then packed suffixes, in one ``forward``.
    ``store`` keeps prefix KV across epochs. ``together`` are processes that each hold a part of the base (FSDP): all
    run the same number of forwards; one without work runs a dummy batch."""

    def __init__(self, packed: PackedModel, store: PrefixStore | None, together: Processes = ALONE) -> None:
        super().__init__()
        self.packed, self.together = packed, together
        self._store = PrefixStore(0, packed.device) if store is None else store
        self._last: dict[tuple[int, ...], PrefixKV] = {}  # of the last pass: the next one may go on behind the same

    @property
    def prefix_budget(self) -> int:
        """Bytes of prefix KV that may be kept across epochs."""
        return self._store.budget

    def forward(self, prefixes: Sequence[tuple[int, ...]], pairs: Sequence[Pair]) -> torch.Tensor:
        """Label logits ``[n, L]`` of ``pairs``, whose prefixes are run (or taken from the store) first."""
        kv = self._prefixes({pair.prefix: prefixes[pair.prefix] for pair in pairs})
        return self.packed.label_logits([kv.get(index) for index in range(len(prefixes))], pairs)

    def forget(self) -> None:
        """Drop the prefix KV that the passes of a batch share."""
        self._last = {}

    def run_dummy(self, policy: int) -> torch.Tensor:
        """A dummy batch while other processes have work: no logits ``[0]``, with a gradient path like theirs."""
        self._prefixes({})
        return self.packed.label_logits([None], [Pair(0, policy, (0,), (0, 1))]).flatten()[:0]

    def _prefixes(self, wanted: Mapping[int, tuple[int, ...]]) -> dict[int, PrefixKV | None]:
        kept = {ids: self._last[ids] for ids in wanted.values() if ids in self._last}
        missing = [ids for ids in wanted.values() if ids not in kept]
        # Every process runs as many forwards as the busiest one: FSDP gathers the layers together.
        most = partial(self.together.most, device=self.packed.device)
        self._last = kept | self._store.get(missing, self.packed.run_prefixes, most)
        return {index: self._last.get(ids) for index, ids in wanted.items()}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The bank's own: the base is not ours to save."""
        return self.packed.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Inverse of :meth:`state_dict`."""
        return self.packed.load_state_dict(state_dict, strict=strict, assign=assign)


class PolicyAdamW(torch.optim.Optimizer):
    """AdamW whose state and step count are each policy's own. ``parameters`` are stacked ``[P, ...]``, of one bank.
    ``rates`` says what each policy's learning rate is multiplied by, asked in every step; None: 1. The other arguments
    are those of ``torch.optim.AdamW``."""

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
        """Move the policies that have a gradient. After a reduction over processes that is any policy with a row on any
        of them."""
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
