"""The baseline that needs no model: TF-IDF of words and word pairs, and logistic regression, on the same rows.

An adapter that does not beat it has learned which words occur, and costs more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline

from alora.data.conversation import LabelledConversation
from alora.errors import DataError
from alora.evaluation.predict import Predictions, labels_of
from alora.evaluation.resampling import Floats
from alora.policy import Policy

MINIMUM_PER_LABEL = 2
MOST_CHARACTERS = 2**26  # of the rows that it learns from: counting a text's words takes 20 times its memory
ROWS_AT_ONCE = 10_000
FLOOR = -50.0


@dataclass(frozen=True)
class BagOfWords:
    """A fitted baseline of one policy."""

    policy: Policy
    pipeline: Pipeline

    def predict(self, rows: Sequence[LabelledConversation]) -> Predictions:
        """Log-probabilities as label logits, for the rows that are labelled for the policy."""
        wanted = [row for row in rows if self.policy.id in row.labels]
        logits_NL = np.empty((0, len(self.policy.labels)))
        for start in range(0, len(wanted), ROWS_AT_ONCE):
            texts = [row.conversation.transcript for row in wanted[start : start + ROWS_AT_ONCE]]
            logits_NL = np.concatenate([logits_NL, log_probabilities(self.pipeline, texts, len(self.policy.labels))])
        return Predictions(self.policy, logits_NL, labels_of(self.policy, wanted))


def log_probabilities(fitted: Pipeline, rows: Sequence[Any] | Floats, labels: int) -> Floats:
    """A classifier's log-probabilities of all ``labels``; :data:`FLOOR` for those that no training row has."""
    logits_NL = np.full((len(rows), labels), FLOOR)
    if len(rows):
        seen: Any = fitted.classes_
        logits_NL[:, seen] = np.maximum(fitted.predict_log_proba(rows), FLOOR)
    return logits_NL


def fit_bag_of_words(policy: Policy, rows: Sequence[LabelledConversation], seed: int = 0) -> BagOfWords:
    """Fit the baseline on the rows that are labelled for ``policy``; with more text than :data:`MOST_CHARACTERS`, on a
    random part that keeps all rows of rare labels.
    """
    wanted = [row for row in rows if policy.id in row.labels]
    label_ids_N = labels_of(policy, wanted)
    if (np.bincount(label_ids_N, minlength=2) >= MINIMUM_PER_LABEL).sum() < 2:
        raise DataError(f"policy {policy.id!r}: the bag-of-words baseline needs two training rows of two labels each")
    pipeline = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=50_000, token_pattern=r"(?u)\b\w+\b"),
        LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000, random_state=seed),
    )
    texts = _texts(wanted, label_ids_N, seed)
    try:
        pipeline.fit(list(texts.values()), label_ids_N[list(texts)])
    except ValueError as error:
        raise DataError(f"policy {policy.id!r}: the bag-of-words baseline found no words to count: {error}") from error
    return BagOfWords(policy, pipeline)


def _texts(rows: Sequence[LabelledConversation], label_ids_N: NDArray[np.int64], seed: int) -> dict[int, str]:
    """By its row's index, each text to learn from: the first of each label, the second of each, ... in random order."""
    texts = [row.conversation.transcript for row in rows]  # roles are words too, so that who spoke last can be learned
    order_N, turn_N = np.random.default_rng(seed).permutation(len(rows)), np.empty(len(rows), dtype=np.int64)
    labels = set(label_ids_N.tolist())
    for label in labels:
        own_N = order_N[label_ids_N[order_N] == label]
        turn_N[own_N] = np.arange(len(own_N))
    in_turn_N = np.argsort(turn_N, kind="stable")
    fitting = int((np.cumsum([len(texts[index]) for index in in_turn_N]) <= MOST_CHARACTERS).sum())
    kept = in_turn_N[: max(fitting, MINIMUM_PER_LABEL * len(labels))]
    return {index: texts[index] for index in sorted(kept.tolist())}


def out_of_fold_words(policy: Policy, rows: Sequence[LabelledConversation], seed: int = 0) -> Predictions:
    """The baseline's answer to each of a policy's rows in folds, fitted on the rows of the other folds."""
    folds_N = np.array([row.folds[policy.id] for row in rows])
    splits = [(np.flatnonzero(folds_N != fold), np.flatnonzero(folds_N == fold)) for fold in set(folds_N.tolist())]
    return Predictions(policy, _held_out_logits(policy, rows, splits, seed), labels_of(policy, rows))


def _held_out_logits(
    policy: Policy, rows: Sequence[LabelledConversation], splits: Iterable[tuple[Any, Any]], seed: int
) -> Floats:
    logits_NL = np.zeros((len(rows), len(policy.labels)))
    for known, asked in splits:
        fitted = fit_bag_of_words(policy, [rows[index] for index in known], seed)
        logits_NL[asked] = fitted.predict([rows[index] for index in asked]).logits_NL
    return logits_NL


def held_out_words(
    policy: Policy, rows: Sequence[LabelledConversation], splits: Iterable[tuple[Any, Any]], seed: int = 0
) -> tuple[Floats, float | None]:
    """Each row's probabilities by a baseline that did not see it, and their AUROC where both classes are there.

    ``splits`` are indices of rows to fit on and to predict; every row is labelled for ``policy`` and predicted once.
    """
    probability_NL = softmax(_held_out_logits(policy, rows, splits, seed), axis=1)
    positive_N = labels_of(policy, rows) == 0
    both = positive_N.any() and not positive_N.all()
    return probability_NL, float(roc_auc_score(positive_N, probability_NL[:, 0])) if both else None
