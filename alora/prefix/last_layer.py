"""What the last layer need not compute.

After the last layer only the row of each pair's last token is read; of a prefix only keys and values are kept. So in
the last layer only the rows that are read have attention queries and go through the MLP. All others get zeros from
both, and nothing reads them. The values and gradients that are read do not change.

Attention knows the rows by its plan. The MLP is reached by hooks on the stock module: one gathers the rows, the other
scatters the result back.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from alora.adapter.bank import Bank, Route


@dataclass(frozen=True)
class _Open:
    """An MLP call that runs on some rows: which, of how many, and the bank's route outside of it."""

    rows: torch.Tensor
    length: int
    outside: Route | None


class LastLayer:
    """The last decoder layer of a base, trimmed on request; :attr:`index` is None where it is not of a known form."""

    def __init__(self, base: PreTrainedModel, bank: Bank) -> None:
        self._bank = bank
        self._wanted: tuple[torch.Tensor, Route | None] | None = None
        self._open: _Open | None = None
        layers: Any = getattr(base.get_decoder(), "layers", [])
        mlp = getattr(layers[-1], "mlp", None) if len(layers) else None
        # Of a dense MLP it is known that every row stands for itself; a router may look at all of them.
        dense = isinstance(getattr(mlp, "down_proj", None), nn.Linear)
        self.index = len(layers) - 1 if dense else None
        if isinstance(mlp, nn.Module) and dense:
            bank.attach(mlp.register_forward_pre_hook(self._take), mlp.register_forward_hook(self._put_back))

    def read_only(self, rows: torch.Tensor, route: Route | None) -> None:
        """Let the next MLP call of the layer run on ``rows`` alone, whose policies ``route`` knows."""
        self._wanted = (rows, route)

    def clear(self) -> None:
        """Forget a request whose call was never made."""
        self._wanted = self._open = None

    def _take(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # Taken once: a call that nobody asked for, as of the stock model, runs on all rows.
        wanted, self._wanted, self._open = self._wanted, None, None
        if wanted is None:
            return None
        rows, route = wanted
        # Fewer rows come now, so the bank needs their own route until the MLP is done.
        self._open = _Open(rows, inputs[0].shape[1], self._bank.exchange(route))
        return (inputs[0].index_select(1, rows), *inputs[1:])

    def _put_back(self, module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        opened, self._open = self._open, None
        if opened is None:
            return None
        self._bank.exchange(opened.outside)
        whole = output.new_zeros(output.shape[0], opened.length, output.shape[2])
        return whole.index_copy_(1, opened.rows, output)
