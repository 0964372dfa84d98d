"""The trained module: prefix KV from the base or the store, and the label logits of the suffixes behind it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair, PrefixKV
from alora.prefix.store import PrefixStore
from alora.training.processes import ALONE, Processes


class SharedPrefixModel(nn.Module):
    """The module that the trainer trains: prefixes without gradient, then packed suffixes, in one ``forward``.

    Args:
        store: prefix KV kept across epochs, or None.
        together: processes that each hold a part of the base (FSDP). Every process runs the same number of forwards;
            one without work runs a dummy batch.
    """

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
