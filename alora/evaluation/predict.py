"""Labelled rows → label logits: one prefix pass a row, whatever the number of policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from alora.conversation import LabelledConversation
from alora.errors import ConfigError
from alora.evaluation.resampling import Flags, Floats
from alora.policy import Policy
from alora.render import Suffix

if TYPE_CHECKING:
    from alora.render import Prefix, Renderer


class LabelScorer(Protocol):
    """What answers: alora's own :class:`~alora.prefix.scorer.Scorer`, or another engine in its place."""

    def label_logits(
        self, prefix: Prefix, suffixes: Sequence[Suffix], asked: Sequence[int]
    ) -> Sequence[Iterable[SupportsFloat]]:
        """Label logits of the adapters at the places ``asked``, one suffix each."""
        ...


@dataclass(frozen=True)
class Predictions:
    """Label logits of one policy on the rows that are labelled for it.

    ``truncated`` counts the rows that lost tokens to ``prompt.max_prefix_tokens``.
    """

    policy: Policy
    logits_NL: Floats
    label_ids_N: NDArray[np.int64]
    truncated: int = 0

    @property
    def positive_N(self) -> Flags:
        """Whether each row is of the policy's positive label."""
        return self.label_ids_N == 0

    @property
    def label_counts(self) -> dict[str, int]:
        """Rows per label, in the policy's order."""
        return {label: int((self.label_ids_N == i).sum()) for i, label in enumerate(self.policy.labels)}


def labels_of(policy: Policy, rows: Sequence[LabelledConversation]) -> NDArray[np.int64]:
    """Label ids of the rows that are labelled for ``policy``, in their order."""
    ids = [policy.label_index(row.labels[policy.id]) for row in rows if policy.id in row.labels]
    return np.array(ids, dtype=np.int64)


def predict(
    scorer: LabelScorer,
    renderer: Renderer,
    policies: Sequence[Policy],
    suffixes: Sequence[Suffix],
    rows: Sequence[LabelledConversation],
    progress: bool = True,
) -> list[Predictions]:
    """Score ``rows`` with the scorer's adapters, adapter ``i`` answering ``policies[i]`` at ``suffixes[i]``.

    A row is scored once, by the policies that it carries a label for; a row without any is skipped.

    Raises:
        ConfigError: policies and suffixes do not pair.
        PolicyError: a label is not one of its policy's.
    """
    from tqdm.auto import tqdm

    if len(policies) != len(suffixes):
        raise ConfigError(f"{len(policies)} policies but {len(suffixes)} suffixes; give one suffix per policy")
    kept_P: list[list[list[float]]] = [[] for _ in policies]
    truncated_P = [0] * len(policies)
    wanted = [row for row in rows if any(policy.id in row.labels for policy in policies)]
    for row in tqdm(wanted, desc="evaluating", unit="row", disable=not progress or len(wanted) < 2):
        prefix = renderer.prefix(row.conversation)
        asked = [i for i, policy in enumerate(policies) if policy.id in row.labels]
        for i, logits_L in zip(asked, scorer.label_logits(prefix, [suffixes[i] for i in asked], asked), strict=True):
            kept_P[i].append([float(logit) for logit in logits_L])
            truncated_P[i] += prefix.truncation is not None
    return [
        Predictions(
            policy,
            np.array(kept, dtype=np.float64).reshape(-1, len(policy.labels)),
            labels_of(policy, wanted),
            truncated,
        )
        for policy, kept, truncated in zip(policies, kept_P, truncated_P, strict=True)
    ]
