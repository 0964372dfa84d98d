"""Labelled rows → label logits: one prefix pass a row, whatever the number of policies; suffixes of several rows
packed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from alora.data.conversation import LabelledConversation
from alora.errors import ConfigError
from alora.evaluation.resampling import Flags, Floats
from alora.policy import Policy
from alora.prompt.render import Question, Suffix

if TYPE_CHECKING:
    from alora.prompt.render import Renderer

BATCH_ROWS, BATCH_PREFIX_TOKENS = 32, 8192


class LabelScorer(Protocol):
    """What answers: alora's own :class:`~alora.prefix.scorer.Scorer`, or another engine in its place."""

    def score_rows(self, questions: Sequence[Question]) -> Sequence[Sequence[Iterable[SupportsFloat]]]:
        """Per question, the label logits of the adapters that it asks."""
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
    with tqdm(total=len(wanted), desc="evaluating", unit="row", disable=not progress or len(wanted) < 2) as bar:
        for questions in batches_of(renderer, policies, suffixes, wanted):
            for question, answers in zip(questions, scorer.score_rows(questions), strict=True):
                for i, logits_L in zip(question.asked, answers, strict=True):
                    kept_P[i].append([float(logit) for logit in logits_L])
                    truncated_P[i] += question.prefix.truncation is not None
            bar.update(len(questions))
    return [
        Predictions(
            policy,
            np.array(kept, dtype=np.float64).reshape(-1, len(policy.labels)),
            labels_of(policy, wanted),
            truncated,
        )
        for policy, kept, truncated in zip(policies, kept_P, truncated_P, strict=True)
    ]


def batches_of(
    renderer: Renderer, policies: Sequence[Policy], suffixes: Sequence[Suffix], rows: Iterable[LabelledConversation]
) -> Iterator[list[Question]]:
    """:func:`batched` questions about every row, to the policies that it is labelled for."""

    def ask(row: LabelledConversation) -> Question:
        asked = [i for i, policy in enumerate(policies) if policy.id in row.labels]
        return Question(renderer.prefix(row.conversation), [suffixes[i] for i in asked], asked)

    return batched(map(ask, rows))


def batched(questions: Iterable[Question]) -> Iterator[list[Question]]:
    """``questions`` in batches whose prefix KV fits into memory together."""
    batch: list[Question] = []
    tokens = 0
    for question in questions:
        length = len(question.prefix.token_ids)
        if batch and (len(batch) == BATCH_ROWS or tokens + length > BATCH_PREFIX_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(question)
        tokens += length
    if batch:
        yield batch
