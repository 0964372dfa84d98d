"""Labelled rows → examples: one prefix and the pairs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from alora.activation import last_occurrence
from alora.errors import TrainingError
from alora.prefix.plan import Pair
from alora.training.loss import pair_weights

if TYPE_CHECKING:
    from alora.data.conversation import LabelledConversation
    from alora.policy import Policy
    from alora.prompt.render import Renderer, Suffix


@dataclass(frozen=True)
class Target:
    """What one policy should answer about an example's conversation."""

    policy: int
    suffix_ids: tuple[int, ...]
    label_token_ids: tuple[int, ...]
    label: int


@dataclass(frozen=True)
class Example:
    """One conversation: its prefix, and a target for each policy that it is labelled for."""

    prefix_ids: tuple[int, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class Batch:
    """Some conversations: ``pairs[i].prefix`` is a place in ``prefixes``; each pair has a label and a weight."""

    prefixes: tuple[tuple[int, ...], ...]
    pairs: tuple[Pair, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]


def examples(
    rows: Sequence[LabelledConversation], policies: Sequence[Policy], renderer: Renderer, activated: bool
) -> list[Example]:
    """Render ``rows`` for every policy that they are labelled for; a row without any is left out.

    For a standard LoRA (``activated`` is False) the whole prompt is suffix, because all of it is adapted.

    Raises:
        TrainingError: PEFT's search would not find the activation where the split has it.
    """
    suffixes = [renderer.suffix(policy) for policy in policies]
    made = []
    for row in rows:
        prefix_ids = renderer.prefix(row.conversation).token_ids
        targets = []
        for place, (policy, suffix) in enumerate(zip(policies, suffixes, strict=True)):
            if policy.id in row.labels:
                _require_one_activation(prefix_ids, suffix, row.where)
                ids = suffix.token_ids if activated else prefix_ids + suffix.token_ids
                targets.append(Target(place, ids, suffix.label_token_ids, policy.label_index(row.labels[policy.id])))
        if targets:
            made.append(Example(prefix_ids if activated else (), tuple(targets)))
    return made


def _require_one_activation(prefix_ids: tuple[int, ...], suffix: Suffix, where: str) -> None:
    found = last_occurrence(prefix_ids + suffix.token_ids, suffix.invocation_ids)
    if found != len(prefix_ids):
        raise TrainingError(
            f"{where}: PEFT would activate at token {found}, the prompt splits at {len(prefix_ids)}; "
            "this is a fault of the renderer, please report it with the row"
        )


def collate(items: Sequence[Example]) -> dict[str, Batch | torch.Tensor]:
    """Join examples into what the trainer passes on: the batch, and its labels as a tensor for the trainer's counts."""
    pairs, labels = [], []
    for place, item in enumerate(items):
        for target in item.targets:
            pairs.append(Pair(place, target.policy, target.suffix_ids, target.label_token_ids))
            labels.append(target.label)
    weights = pair_weights([pair.policy for pair in pairs])
    batch = Batch(tuple(item.prefix_ids for item in items), tuple(pairs), tuple(labels), tuple(weights))
    return {"batch": batch, "labels": torch.tensor(labels)}
