"""What every arm of a benchmark is given: one conversation, P policies behind it, and what each should answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from alora.adapter.folder import AdapterSpec, AdapterWeights, new_adapter
from alora.bench.shapes import BaseShape
from alora.prefix.plan import Pair

INVOCATION = (5, 6, 7)
LABELS = (11, 12)
_FIRST_CONTENT = 20  # token ids below are reserved for what a prompt must not hold by chance


@dataclass(frozen=True)
class Workload:
    """Pairs (conversation, policy) of one step: one prefix, and per policy a suffix and the right label."""

    prefix_ids: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]

    @property
    def policies(self) -> int:
        """P: the number of pairs, because there is one conversation."""
        return len(self.suffixes)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The suffixes as the packed forward takes them; pair ``p`` belongs to policy ``p``."""
        return tuple(Pair(0, policy, suffix, LABELS) for policy, suffix in enumerate(self.suffixes))

    def prompt(self, policy: int) -> tuple[int, ...]:
        """The whole prompt of one pair, as a full-sequence arm runs it."""
        return self.prefix_ids + self.suffixes[policy]

    def answer(self, policy: int) -> int:
        """The token that policy ``policy`` should answer with."""
        return LABELS[self.labels[policy]]


def draw_workload(shape: BaseShape, prefix: int, suffix: int, policies: int, seed: int) -> Workload:
    """Random prompts. Pair ``p`` is the same for any number of policies above ``p``."""
    prefix_ids = _tokens(shape.vocab, prefix, seed)
    own = suffix - len(INVOCATION)
    suffixes = tuple(INVOCATION + _tokens(shape.vocab, own, seed + 1 + policy) for policy in range(policies))
    return Workload(prefix_ids, suffixes, tuple(policy % len(LABELS) for policy in range(policies)))


def draw_adapter(
    model: nn.Module, rank: int, targets: Sequence[str], seed: int, activated: bool = True
) -> AdapterWeights:
    """An adapter whose B is not zero: at zero, A would have no gradient and the adapter no effect."""
    spec = AdapterSpec(rank, 2.0 * rank, tuple(sorted(targets)), INVOCATION if activated else None)
    fresh = new_adapter(spec, model, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    return AdapterWeights(
        spec, {name: (a, 0.02 * torch.randn(b.shape, generator=generator)) for name, (a, b) in fresh.tensors.items()}
    )


def pair_digest(prompt_ids: Sequence[int], answer_id: int) -> str:
    """Name of a piece of work: the very tokens that were run and the answer that was trained."""
    return hashlib.sha256(repr((list(prompt_ids), answer_id)).encode()).hexdigest()[:16]


def _tokens(vocab: int, count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(_FIRST_CONTENT, vocab, (count,), generator=generator).tolist())
