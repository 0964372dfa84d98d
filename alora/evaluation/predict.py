"""Labelled rows → label logits: each prefix once, whatever the number of policies; several rows computed together.

Every row of a file is scored this way: by ``evaluate``, by ``alora score``, in shards, and in a comparison. In exact
arithmetic an answer does not depend on the rows that are computed with it. A kernel tiles by shape, so its last bits
may: in float32 a probability moves by less than 1e-5, in bfloat16 by about 0.01. The same rows in the same order with
the same ``scoring.max_tokens`` give the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from alora.config.schema import ScoringSettings
from alora.data.conversation import LabelledConversation
from alora.evaluation.calibration import all_probabilities, verdicts
from alora.evaluation.metrics import Flags, Floats
from alora.policy import Policy
from alora.prompt.render import Question, Renderer, Suffix
from alora.verdict import OperatingPoint, highest

Answers = Sequence[Sequence[Iterable[SupportsFloat]]]
MAX_TOKENS = ScoringSettings().max_tokens
# The exponent by which the slope that fits an adapter's logits grows with its rows, measured on 18 trainings of 100 or
# 240 rows: on test rows that slope was 1.3 times (median) the one that fits three folds' answers (docs/accuracy.md).
FOLD_SLOPE = 0.65


class LabelScorer(Protocol):
    """Computes label logits: alora's own :class:`~alora.prefix.scorer.Scorer`, or another engine."""

    def score_rows(self, questions: Sequence[Question]) -> Answers:
        """Per question, the label logits of the adapters that it asks."""
        ...


@dataclass(frozen=True)
class Predictions:
    """Label logits of one policy on the rows that are labelled for it. ``truncated`` counts the rows that lost tokens
    to ``prompt.max_prefix_tokens``."""

    policy: Policy
    logits_NL: Floats
    label_ids_N: NDArray[np.int64]
    truncated: int = 0

    @property
    def positive_N(self) -> Flags:
        """Whether each row is of the policy's positive label."""
        return self.label_ids_N == 0

    def probability_NL(self, point: OperatingPoint) -> Floats:
        return all_probabilities(self.logits_NL, point.temperature, point.bias)

    def verdicts_N(self, point: OperatingPoint) -> NDArray[np.int64]:
        """The label ids that are answered at ``point``."""
        return verdicts(self.probability_NL(point), point.threshold)

    @property
    def label_counts(self) -> dict[str, int]:
        """Rows per label, in the policy's order."""
        return {label: int((self.label_ids_N == i).sum()) for i, label in enumerate(self.policy.labels)}


def held_out_predictions(
    policy: Policy, rows: Sequence[LabelledConversation], logits_NL: Floats | Sequence[Sequence[float]]
) -> Predictions:
    """Label logits that are there for ``rows`` already, as far as they are labelled for ``policy``."""
    known_NL = np.array(logits_NL, dtype=np.float64).reshape(-1, len(policy.labels))
    return Predictions(policy, known_NL, labels_of(policy, rows))


def out_of_fold_predictions(
    policy: Policy, rows: Sequence[LabelledConversation], logits_NL: Floats | Sequence[Sequence[float]]
) -> Predictions:
    """What the folds' adapters answered to ``rows``, on the scale of the adapter that learnt from all of them. That
    adapter has seen ``folds / (folds - 1)`` times the rows, so it tells unseen ones apart better, and what fits the
    folds' logits would leave its probabilities too close to a half (see :data:`FOLD_SLOPE`)."""
    folds = len({row.folds[policy.id] for row in rows})
    answered = held_out_predictions(policy, rows, logits_NL)
    return replace(answered, logits_NL=answered.logits_NL * (1 - 1 / folds) ** FOLD_SLOPE)


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
    progress: str = "evaluating",
    max_tokens: int = MAX_TOKENS,
) -> list[Predictions]:
    """Score ``rows`` with the scorer's adapters, adapter ``i`` answering ``policies[i]`` at ``suffixes[i]``. A row is
    scored once, by the policies that it carries a label for; a row without any is skipped. ``progress`` names the bar;
    an empty name shows none. ``max_tokens``: see :func:`batched`."""
    kept_P: list[list[list[float]]] = [[] for _ in policies]
    truncated_P = [0] * len(policies)
    wanted = [row for row in rows if any(policy.id in row.labels for policy in policies)]
    with tqdm(total=len(wanted), desc=progress, unit="row", disable=not progress or len(wanted) < 2) as bar:
        asked = (question for row in wanted for question in _ask(renderer, policies, suffixes, row))
        for windows, logits_PL in answers(scorer.score_rows, asked, max_tokens):
            for i, logits_L in zip(windows[0].asked, logits_PL, strict=True):
                kept_P[i].append(list(logits_L))
                truncated_P[i] += any(window.prefix.truncation is not None for window in windows)
            bar.update()
    return [
        replace(held_out_predictions(policy, wanted, kept), truncated=truncated)
        for policy, kept, truncated in zip(policies, kept_P, truncated_P, strict=True)
    ]


def predict_parts(
    scorer: LabelScorer,
    renderer: Renderer,
    policies: Sequence[Policy],
    suffixes: Sequence[Suffix],
    parts: Mapping[str, Sequence[LabelledConversation]],
    progress: str,
    max_tokens: int = MAX_TOKENS,
) -> list[list[Predictions]]:
    """:func:`predict` on several parts of the rows by name: per policy its predictions on each of them."""
    predictions = [
        predict(scorer, renderer, policies, suffixes, rows, f"{progress} on {name}", max_tokens)
        for name, rows in parts.items()
    ]
    return [list(of_policy) for of_policy in zip(*predictions, strict=True)]


def _ask(
    renderer: Renderer, policies: Sequence[Policy], suffixes: Sequence[Suffix], row: LabelledConversation
) -> list[Question]:
    asked = [i for i, policy in enumerate(policies) if policy.id in row.labels]
    return renderer.questions(row.conversation, [suffixes[i] for i in asked], asked)


def answers(
    score_rows: Callable[[Sequence[Question]], Answers], questions: Iterable[Question], max_tokens: int = MAX_TOKENS
) -> Iterator[tuple[list[Question], list[Sequence[float]]]]:
    """Per conversation, the questions of its windows, and each policy's logits: the :func:`highest` of any window."""
    windows: list[Question] = []
    logits_WPL: list[list[list[float]]] = []
    for batch in batched(questions, max_tokens):
        for question, logits_PL in zip(batch, score_rows(batch), strict=True):
            windows.append(question)
            logits_WPL.append([list(map(float, logits_L)) for logits_L in logits_PL])
            if not question.more:
                yield windows, [highest(logits_WL) for logits_WL in zip(*logits_WPL, strict=True)]
                windows, logits_WPL = [], []


def batched(questions: Iterable[Question], max_tokens: int = MAX_TOKENS) -> Iterator[list[Question]]:
    """``questions`` in batches of at most ``max_tokens`` prefix tokens, whose KV is in memory together; a longer prefix
    is a batch of its own."""
    batch: list[Question] = []
    tokens = 0
    for question in questions:
        length = len(question.prefix.token_ids)
        if batch and tokens + length > max_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(question)
        tokens += length
    if batch:
        yield batch
