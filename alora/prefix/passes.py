"""What a packed pass is made of: prefixes, the suffixes behind them, and what attention has to know of both.

Shapes: G KV heads, T prefix tokens, E head width, N packed rows, n pairs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch

from alora.adapter.bank import Route
from alora.prefix.last_layer import LastLayer
from alora.prefix.side_by_side import KV, MOST_SUFFIXES


@dataclass(frozen=True)
class PrefixKV:
    """KV of one prefix: per layer ``(K_GTE, V_GTE)``, the base's own bytes."""

    layers: tuple[KV, ...]
    length: int


@dataclass(frozen=True)
class Pair:
    """One suffix to run: behind which prefix of the pass, with which adapter of the bank, and what it may answer."""

    prefix: int
    policy: int
    suffix_ids: tuple[int, ...]
    label_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """The consecutive rows of one conversation."""

    rows: slice
    lengths: tuple[int, ...]
    kv: PrefixKV | None
    last_n: torch.Tensor  # indices among its rows of each suffix's last token


@dataclass(frozen=True)
class Plan:
    """What attention needs to know of a pass. Without groups the pass is a prefix, of which K and V alone are kept."""

    groups: tuple[Group, ...]
    last_layer: LastLayer
    read_n: torch.Tensor  # rows that are read after the last layer, and whose policy each is
    route: Route | None
    reached: set[int]  # layers whose attention has followed a plan
    kv: list[KV] = field(default_factory=list)  # of each layer, ``[B, G, T, E]``, where the pass is a prefix

    @cached_property  # every layer asks
    def side_by_side(self) -> bool:
        """Whether attention runs all conversations as one batch: for many with few suffixes, where calls dominate."""
        suffixes = sum(len(group.lengths) for group in self.groups)
        few = len(self.groups) > 1 and suffixes <= MOST_SUFFIXES * len(self.groups)
        return few and all(group.kv is not None for group in self.groups)


# Attention reads it from here: stablelm and nemotron drop their forward's keyword arguments on the way.
_RUNNING: ContextVar[Plan | None] = ContextVar("plan", default=None)


@contextmanager
def running(plan: Plan | None) -> Iterator[None]:
    """Let attention follow ``plan`` inside the block."""
    token = _RUNNING.set(plan)
    try:
        yield
    finally:
        _RUNNING.reset(token)


def running_plan() -> Plan | None:
    """The plan of the pass that is under way; None where the model runs as the base."""
    return _RUNNING.get()


Item = TypeVar("Item")


def passes(items: Sequence[Item], size: Callable[[Item], int], limit: int) -> list[list[Item]]:
    """Cut ``items`` into runs of at most ``limit`` suffix tokens; a longer single one gets a pass of its own."""
    parts: list[list[Item]] = []
    tokens = limit + 1  # so that the first item opens a pass
    for item in items:
        if tokens + size(item) > limit:
            parts.append([])
            tokens = 0
        parts[-1].append(item)
        tokens += size(item)
    return parts


def rows_of(
    pairs: Sequence[Pair], prefixes: Sequence[PrefixKV | None]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Token, position and policy of each row, and the last row of each pair. One loop appends them, so they stay
    aligned.
    """
    ids: list[int] = []
    positions: list[int] = []
    last: list[int] = []
    policies: list[int] = []
    for pair in pairs:
        kv = prefixes[pair.prefix]
        start = 0 if kv is None else kv.length
        ids += pair.suffix_ids
        positions += range(start, start + len(pair.suffix_ids))
        policies += [pair.policy] * len(pair.suffix_ids)
        last.append(len(ids) - 1)
    return ids, positions, last, policies


def groups_of(pairs: Sequence[Pair], prefixes: Sequence[PrefixKV | None], device: torch.device) -> list[Group]:
    lengths: dict[int, list[int]] = {}
    for pair in pairs:
        lengths.setdefault(pair.prefix, []).append(len(pair.suffix_ids))
    groups, start = [], 0
    for prefix, sizes in lengths.items():
        last_n = torch.tensor(sizes, device=device).cumsum(0) - 1  # suffixes lie end to end
        groups.append(Group(slice(start, start + sum(sizes)), tuple(sizes), prefixes[prefix], last_n))
        start += sum(sizes)
    return groups
