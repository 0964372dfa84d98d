"""Prefix KV kept across epochs: a constant of training need not be computed twice.

Prefixes are computed several to a forward, and what else is in a forward shows in a kernel's last bits. So the store
decides before the first step which prefixes it keeps and which of them are computed together, by the conversations and
the budget alone. A resumed run then computes the same groups, whichever it needs first, and ends with the same bytes.
A prefix without room is computed with the other prefixes of its pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from alora.prefix.passes import PrefixKV

Ids = tuple[int, ...]
GROUP_TOKENS = 2048  # padded tokens of a forward of several prefixes
# Padded tokens that cost no more than another forward does: on a GPU launches dominate.
_SPARE_TOKENS = {"cpu": 32, "cuda": 1024}
Run = Callable[[Sequence[Ids]], Sequence[PrefixKV]]
_UNKNOWN_MEMORY = 4 * 1024**3


def groups_by_length(prefixes: Iterable[Sequence[int]], device: torch.device) -> Iterator[tuple[Ids, ...]]:
    """Distinct non-empty ``prefixes`` in groups of about one length, short ones first: each group is one forward."""
    spare, group, seen = _SPARE_TOKENS.get(device.type, 32), list[Ids](), set[Ids]()
    for ids in sorted(prefixes, key=len):
        length, longest = len(ids), len(group[-1]) if group else 0
        seen = seen if length == longest else set()
        if not length or (ids := tuple(ids)) in seen:
            continue
        if group and ((length - longest) * len(group) > spare or length * (len(group) + 1) > GROUP_TOKENS):
            yield tuple(group)
            group = []
        group.append(ids)
        seen.add(ids)
    if group:
        yield tuple(group)


class PrefixStore:
    """Prefix KV by token ids, kept up to ``budget`` bytes; ``hits`` and ``misses`` count the look-ups."""

    def __init__(self, budget: int, device: torch.device) -> None:
        self.budget, self._device = budget, device
        self._group_of: dict[Ids, tuple[Ids, ...]] = {}
        self._kept: dict[Ids, PrefixKV] = {}
        self._prefixes = self._needed = self.hits = self.misses = 0

    def plan(self, prefixes: Iterable[Sequence[int]], token_bytes: int) -> None:
        """Choose what is kept, short prefixes first; ``token_bytes`` is what the KV of a token takes."""
        self._prefixes = self._needed = 0
        for group in groups_by_length(prefixes, self._device):
            self._prefixes += len(group)
            self._needed += token_bytes * len(group) * len(group[-1])
            if self._needed <= self.budget:
                self._group_of |= dict.fromkeys(group, group)

    def get(
        self, wanted: Iterable[Ids], run: Run, most: Callable[[int], int] = lambda forwards: forwards
    ) -> dict[Ids, PrefixKV]:
        """The KV of each of ``wanted`` that is not empty, kept or computed by ``run``.

        ``most`` says how many forwards are run in all; those beyond what is needed are of a dummy prefix.
        """
        found = {ids: self._kept.get(ids) for ids in wanted if ids}
        missing = [ids for ids, kv in found.items() if kv is None]
        self.hits, self.misses = self.hits + len(found) - len(missing), self.misses + len(missing)
        # Of what is kept, the whole group, though a part of it may not be wanted yet.
        groups = list(dict.fromkeys(self._group_of[ids] for ids in missing if ids in self._group_of))
        groups += groups_by_length((ids for ids in missing if ids not in self._group_of), self._device)
        for _ in range(most(len(groups)) - len(groups)):
            run([(0,)])
        for group in groups:
            ran = dict(zip(group, run(group), strict=True))
            self._kept |= {ids: kv for ids, kv in ran.items() if ids in self._group_of}
            found |= {ids: kv for ids, kv in ran.items() if ids in found}
        return {ids: kv for ids, kv in found.items() if kv is not None}

    def shortfall(self) -> str | None:
        """What to say where the budget does not hold every prefix."""
        if self._needed <= self.budget:
            return None
        return (
            f"the prefix cache had room for {len(self._group_of)} of {self._prefixes} prefixes and the others were "
            f"computed each time; training.prefix_cache_bytes={self._needed} would hold all"
        )


def open_store(budget: int, model: PreTrainedModel, prefixes: Iterable[Sequence[int]]) -> PrefixStore:
    """A store that plans to keep ``prefixes`` of the base ``model``."""
    store = PrefixStore(budget, model.device)
    if not budget:
        return store
    with torch.no_grad():
        cache = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True)
    layers = cache.past_key_values.layers
    store.plan(prefixes, sum(layer.keys.nbytes + layer.values.nbytes for layer in layers))
    return store


def memory_budget(device: torch.device, sharing: int = 1) -> int:
    """Half of the memory that is free on ``device``, shared by ``sharing`` processes where they have one machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return _free_memory() // (2 * sharing)


def _free_memory() -> int:
    """Bytes of main memory that this process could still take; a container may have less than its machine."""
    try:
        (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    except (OSError, ValueError):  # not Linux
        return _UNKNOWN_MEMORY
    free = int(line.split()[1]) * 1024
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
