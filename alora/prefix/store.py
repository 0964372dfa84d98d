"""Prefix KV kept across epochs: a constant of training need not be computed twice."""

from __future__ import annotations

from collections.abc import Callable

from alora.prefix.packed import PrefixKV


class PrefixStore:
    """Prefix KV by token ids, up to ``budget`` bytes.

    What came first stays: training visits every conversation once per epoch, so replacing the oldest entry would
    replace each one shortly before it is needed. The KV of a prefix depends on its ids alone, so a run with a store
    equals a run without one bit for bit.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._bytes = budget, 0
        self._kept: dict[tuple[int, ...], PrefixKV | None] = {}
        self.hits = 0
        self.misses = 0

    def get(self, token_ids: tuple[int, ...], compute: Callable[[tuple[int, ...]], PrefixKV | None]) -> PrefixKV | None:
        """The KV of ``token_ids``, computed when it is not kept."""
        if token_ids in self._kept:
            self.hits += 1
            return self._kept[token_ids]
        self.misses += 1
        kv = compute(token_ids)
        size = 0 if kv is None else sum(k.nbytes + v.nbytes for k, v in kv.layers)
        if self._bytes + size <= self._budget:
            self._kept[token_ids] = kv
            self._bytes += size
        return kv
