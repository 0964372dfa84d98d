"""P adapters in one pass: the LoRA product grouped by policy.

Row ``n`` of a packed pass belongs to one policy ``p(n)``, and an adapted linear layer computes

    y_n = W x_n + s_p B_p A_p x_n,     p = p(n).

Stacking the adapters of a module as ``A_PRD`` and ``B_POR`` and scattering the rows of each policy into ``x_PMD`` (M is
the largest number of rows that a policy has, the rest is zero) turns the second term into two batched products,

    delta_PMO = s_P (x_PMD A_PDR) B_PRO,

gathered into the rows again. R is the largest rank of the module's adapters; one of a smaller rank, or that does not
adapt the module at all, holds zeros there. Both factors of a zero block then have zero gradient, so the padding stays
zero under any optimiser.

The bank hooks the base's own linear layers: no module is replaced, and without a route they are the base.

Shapes: P policies, M rows of a policy, N packed rows, R rank, D in, O out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.adapter.product import AddProduct, Scaling
from alora.errors import AdapterError

_FOREIGN = "the adapter belongs to another base: give the base that it was trained on, base.source=ID_OR_FOLDER"


@dataclass(frozen=True)
class Route:
    """Which rows of a packed pass belong to which policy.

    ``index_N`` is the index of each row in the flattened ``[P * M]``, with M = ``width``; None when the rows are
    already in that order. ``chosen`` selects the policies in a bank.
    """

    policies: tuple[int, ...]
    width: int
    index_N: torch.Tensor | None
    chosen: slice | torch.Tensor

    @staticmethod
    def of_rows(policy_of_row: Sequence[int], device: torch.device) -> "Route":
        """Build the route of rows whose policies are ``policy_of_row``."""
        counts = Counter(policy_of_row)
        policies, width = tuple(sorted(counts)), max(counts.values())
        nth: Counter[int] = Counter()
        first = {policy: group * width for group, policy in enumerate(policies)}
        indices = []
        for policy in policy_of_row:
            indices.append(first[policy] + nth[policy])
            nth[policy] += 1
        # Rows in order need no copy: a view is enough, forward and backward.
        in_order = indices == list(range(len(policies) * width))
        # A slice is a view; an index would copy the weights of every module in every pass.
        run = slice(policies[0], policies[-1] + 1)
        chosen = run if run.stop - run.start == len(policies) else torch.tensor(policies, device=device)
        return Route(policies, width, None if in_order else torch.tensor(indices, device=device), chosen)

    def scatter(self, x_ND: torch.Tensor) -> torch.Tensor:
        """``[N, D] -> [P, M, D]``, zeros where a policy has fewer rows than M."""
        count, depth = len(self.policies), x_ND.shape[1]
        if self.index_N is not None:
            x_ND = x_ND.new_zeros(count * self.width, depth).index_copy_(0, self.index_N, x_ND)
        return x_ND.view(count, self.width, depth)

    def gather(self, y_PMO: torch.Tensor) -> torch.Tensor:
        """Inverse of :meth:`scatter`."""
        y_NO = y_PMO.flatten(0, 1)
        return y_NO if self.index_N is None else y_NO.index_select(0, self.index_N)


class Bank(nn.Module):
    """The stacked adapters of one base, run by hooks on its linear layers.

    Args:
        model: the base, whose module paths the adapters name.
        adapters: P adapters; ranks and targets may differ.
        dtype: of the stacked weights; PEFT's own default under a bfloat16 base is float32.

    Raises:
        AdapterError: an adapter names a module that the base lacks, or with another shape.
    """

    scaling_P: torch.Tensor

    def __init__(
        self,
        model: nn.Module,
        adapters: Sequence[AdapterWeights],
        dtype: torch.dtype = torch.float32,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        self.specs: tuple[AdapterSpec, ...] = tuple(adapter.spec for adapter in adapters)
        self._names = sorted({name for adapter in adapters for name in adapter.tensors})
        self._own = tuple(frozenset(adapter.tensors) for adapter in adapters)
        self._route: Route | None = None
        self._disabled = False
        self._input: tuple[torch.Tensor, Route, torch.Tensor] | None = None  # of the last layer, and what it became
        scalings = {spec.scaling for spec in self.specs}
        self._alpha = scalings.pop() if len(scalings) == 1 else 0.0  # 0: they differ
        self._linears: list[nn.Module] = []  # that it adapts; a list, so that they stay the base's own
        self._hooks: list[RemovableHandle] = []  # a module hook would outlive this bank: release() removes them
        modules = dict(model.named_modules())
        self.a_PRD, self.b_POR = nn.ParameterList(), nn.ParameterList()
        for name in self._names:  # before memory is taken for any
            _require_layer(name, modules.get(name), adapters)
        for index, name in enumerate(self._names):
            module = modules[name]
            assert isinstance(module, nn.Linear)
            a_PRD, b_POR = _stack(name, module, adapters, dtype)
            self.a_PRD.append(nn.Parameter(a_PRD, requires_grad=trainable))
            self.b_POR.append(nn.Parameter(b_POR, requires_grad=trainable))
            self._linears.append(module)
            self._hooks.append(module.register_forward_hook(self._hook(index)))
        device = self.a_PRD[0].device
        self.register_buffer(
            "scaling_P",
            torch.tensor([spec.scaling for spec in self.specs], dtype=dtype, device=device),
            persistent=False,  # it follows from the specs, and a checkpoint holds what trains
        )

    @contextmanager
    def route(self, route: Route | None) -> Iterator[None]:
        """Send the rows of every pass inside the block to their adapters; None is the base alone."""
        before, self._route = self._route, route
        try:
            yield
        finally:
            self._route, self._input = before, None

    def exchange(self, route: Route | None) -> Route | None:
        """Set the route inside a pass and return the previous one, for the caller to restore."""
        before, self._route = self._route, route
        return before

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The base alone inside the block, whatever route a pass sets."""
        before, self._disabled = self._disabled, True
        try:
            yield
        finally:
            self._disabled = before

    def adapts(self, module: nn.Module) -> bool:
        """Whether an adapter has weights for ``module`` of the base."""
        return any(linear is module for linear in self._linears)

    def attach(self, *hooks: RemovableHandle) -> None:
        """Hooks that leave the base with the bank's own."""
        self._hooks += hooks

    def release(self) -> None:
        """Take the hooks off the base, which then holds nothing of this bank."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def current_route(self) -> Route | None:
        """The route of the pass that is under way."""
        return self._route

    def adapter(self, policy: int) -> AdapterWeights:
        """A copy of one policy's adapter, without padding, on CPU."""
        spec = self.specs[policy]
        tensors = {}
        for index, name in enumerate(self._names):
            if name in self._own[policy]:
                a_RD = self.a_PRD[index][policy, : spec.rank]
                b_OR = self.b_POR[index][policy, :, : spec.rank]
                tensors[name] = (a_RD.detach().cpu().clone(), b_OR.detach().cpu().clone())
        return AdapterWeights(spec, tensors)

    @torch.no_grad()
    def restore(self, policy: int, weights: AdapterWeights) -> None:
        """Give one policy the weights that :meth:`adapter` returned."""
        rank = self.specs[policy].rank
        for name, (a_RD, b_OR) in weights.tensors.items():
            index = self._names.index(name)
            self.a_PRD[index][policy, :rank] = a_RD
            self.b_POR[index][policy, :, :rank] = b_OR

    def inert(self, policy: int) -> bool:
        """Whether one policy's adapter still is what it began as: B is zero, and the base answers."""
        return not any(bool(b_POR[policy].any()) for b_POR in self.b_POR)

    def gradients(self, policy: int) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """One policy's ``(dA_RD, dB_OR)`` per module path; zeros where no backward has reached."""
        rank, found = self.specs[policy].rank, {}
        for index, name in enumerate(self._names):
            if name in self._own[policy]:
                a, b = self.a_PRD[index], self.b_POR[index]
                da = torch.zeros_like(a) if a.grad is None else a.grad
                db = torch.zeros_like(b) if b.grad is None else b.grad
                found[name] = (da[policy, :rank], db[policy, :, :rank])
        return found

    @torch.no_grad()
    def clip_gradients(self, limit: float) -> None:
        """Scale each policy's gradient down to the norm ``limit``, as ``clip_grad_norm_`` does for one model."""
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        if not grads:  # no policy had a row in this step
            return
        norms_P = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
        # 1e-6 as in torch.nn.utils.clip_grad_norm_
        factors_P = (limit / (norms_P + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factors_P.view(-1, *[1] * (grad.dim() - 1)))

    def _hook(self, index: int):
        def add_delta(module: nn.Module, inputs: tuple[torch.Tensor, ...], y: torch.Tensor) -> torch.Tensor | None:
            if self._route is None:
                return None  # None leaves y as it is, bit for bit: the prefix is the base's
            _require_rows(inputs[0])
            if self._disabled:
                return None
            return self._adapted(index, inputs[0], y, self._route)

        return add_delta

    def _adapted(self, index: int, x_1ND: torch.Tensor, y_1NO: torch.Tensor, route: Route) -> torch.Tensor:
        a_PRD, b_POR = self.a_PRD[index], self.b_POR[index]
        # Layers that read one input, as q, k and v do, share its cast and its copy in the order of policies.
        if self._input is None or self._input[0] is not x_1ND or self._input[1] is not route:
            self._input = (x_1ND, route, route.scatter(x_1ND.squeeze(0).to(a_PRD.dtype)))
        scaling = Scaling(self._alpha, None)
        if not self._alpha:
            chosen = self.scaling_P if len(route.policies) == len(self.specs) else self.scaling_P[route.chosen]
            scaling = Scaling(1.0, chosen[:, None, None])
        return AddProduct.apply(self._input[2], y_1NO, a_PRD, b_POR, scaling, route)  # pyright: ignore[reportReturnType]


def _require_rows(x_1ND: torch.Tensor) -> None:
    """Raise unless tokens lie in a row; also when the bank is disabled, which is how a packed model is first tried."""
    if x_1ND.dim() != 3:
        raise AdapterError(
            f"a module that the adapters target is given a {x_1ND.dim()}-dimensional input, as the experts of a "
            "mixture and OPT's fc1 are: tokens no longer lie in a row; leave it out of adapter.targets (attention "
            "alone works)"
        )


def _require_layer(name: str, module: nn.Module | None, adapters: Sequence[AdapterWeights]) -> None:
    if not isinstance(module, nn.Linear):
        raise AdapterError(f"the base has no linear layer {name!r}; {_FOREIGN}")
    for a_RD, b_OR in (adapter.tensors[name] for adapter in adapters if name in adapter.tensors):
        if a_RD.shape[1] != module.in_features or b_OR.shape[0] != module.out_features:
            raise AdapterError(
                f"adapter of {name} is {a_RD.shape[1]} -> {b_OR.shape[0]}, the base's layer "
                f"{module.in_features} -> {module.out_features}; {_FOREIGN}"
            )


def _stack(
    name: str, module: nn.Linear, adapters: Sequence[AdapterWeights], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    rank = max(adapter.spec.rank for adapter in adapters if name in adapter.tensors)
    device = module.weight.device
    a_PRD = torch.zeros(len(adapters), rank, module.in_features, dtype=dtype, device=device)
    b_POR = torch.zeros(len(adapters), module.out_features, rank, dtype=dtype, device=device)
    for policy, adapter in enumerate(adapters):
        if name not in adapter.tensors:
            continue
        a_RD, b_OR = adapter.tensors[name]
        a_PRD[policy, : a_RD.shape[0]] = a_RD
        b_POR[policy, :, : b_OR.shape[1]] = b_OR
    return a_PRD, b_POR
