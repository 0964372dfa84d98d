"""The baseline that needs no model: TF-IDF of words and word pairs, and logistic regression, on the same rows.

An adapter that does not beat it has learned which words occur, and costs more. Fitted without some rows, it says which
of their labels look wrong: confident learning (Northcutt et al. 2021).
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline

from alora.data.conversation import LabelledConversation
from alora.errors import DataError, LeftOut
from alora.evaluation.metrics import Floats
from alora.evaluation.predict import Predictions, labels_of
from alora.policy import Policy

MINIMUM_PER_LABEL = 2
MOST_CHARACTERS = 2**26  # of the rows that it learns from: counting a text's words takes 20 times its memory
ROWS_AT_ONCE = 10_000
FLOOR = -50.0
FOLDS = 5
LEAST = 3  # rows of a label to doubt it: one to hold out, and two to learn from
WORDS_KNOW = 0.75  # AUROC below which the words' doubts say little of the labels


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
    random part that keeps all rows of rare labels."""
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
    policy: Policy, rows: Sequence[LabelledConversation], splits: Iterable[tuple[Any, Any]]
) -> tuple[Floats, float | None]:
    """Each row's probabilities by a baseline that did not see it, and their AUROC where both classes are there.
    ``splits`` are indices of rows to fit on and to predict; every row is labelled for ``policy`` and predicted once."""
    probability_NL = softmax(_held_out_logits(policy, rows, splits, seed=0), axis=1)
    positive_N = labels_of(policy, rows) == 0
    both = positive_N.any() and not positive_N.all()
    return probability_NL, float(roc_auc_score(positive_N, probability_NL[:, 0])) if both else None


@dataclass(frozen=True)
class Doubt:
    """A row whose label a model that did not train on it doubts; ``probability`` is that of ``likelier``."""

    row: LabelledConversation
    label: str
    likelier: str
    probability: float


def doubtful_labels(policy: Policy, rows: Sequence[LabelledConversation]) -> tuple[list[Doubt], float]:
    """Rows of ``policy`` whose label is probably wrong, the surest first; and the AUROC of the words that doubt them.

    A bag of words is fitted on four fifths of the rows and predicts the last fifth. A row is doubtful when another
    label is at least as probable for it as that label is on average for the rows that have it, and more probable than
    its own. Word counts ignore meaning: read the rows before you change them.
    """
    mine = [row for row in rows if policy.id in row.labels]
    label_ids_N = labels_of(policy, mine)
    count_L = np.bincount(label_ids_N, minlength=2)
    if (count_L >= LEAST).sum() < 2:
        raise DataError(
            f"policy {policy.id!r}: too few rows of a label to hold any out; words can doubt labels from {LEAST} rows "
            "of two labels each"
        )
    folds = min(FOLDS, int(np.sort(count_L)[-2]))  # each with a row of two labels; a third may be rarer
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        splits = list(StratifiedKFold(folds, shuffle=True, random_state=0).split(label_ids_N, label_ids_N))
    probabilities_NL, auroc = held_out_words(policy, mine, splits)
    return doubts_of(policy, mine, probabilities_NL), 0.5 if auroc is None else auroc


def doubts_of(policy: Policy, rows: Sequence[LabelledConversation], probabilities_NL: Floats) -> list[Doubt]:
    """The doubtful ones of ``rows``, the surest first, by what a model that had not seen them says of each label."""
    label_ids_N = labels_of(policy, rows)
    likelier_N = likelier_labels(probabilities_NL, label_ids_N)
    doubted = [
        Doubt(rows[n], policy.labels[label_ids_N[n]], policy.labels[likelier], float(probabilities_NL[n, likelier]))
        for n, likelier in enumerate(likelier_N)
        if likelier != label_ids_N[n]
    ]
    return sorted(doubted, key=lambda doubt: -doubt.probability)


def without_doubtful(
    policies: Sequence[Policy], rows: Sequence[LabelledConversation]
) -> tuple[list[LabelledConversation], LeftOut]:
    """``rows`` without the labels that :func:`doubtful_labels` finds, and the policies for which it cannot look."""
    left_out, by_id = LeftOut(), {policy.id: policy for policy in policies}
    found = left_out.each(by_id, lambda name: doubtful_labels(by_id[name], rows)[0])
    # By the row itself: files of one name in two folders share their rows' names.
    doubted = {(name, id(doubt.row)) for name, doubts in found.items() for doubt in doubts}
    labels = [{name: row.labels[name] for name in row.labels if (name, id(row)) not in doubted} for row in rows]
    return [replace(row, labels=kept) for row, kept in zip(rows, labels, strict=True)], left_out


def likelier_labels(probability_NL: Floats, label_ids_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each row's label, or the one that it is more likely to have: at least as probable as that label is on average for
    the rows that carry it, and more probable than the row's own."""
    own_N = np.take_along_axis(probability_NL, label_ids_N[:, None], axis=1)
    carried_NL = label_ids_N[:, None] == np.arange(probability_NL.shape[1])
    usual_L = [own_N[carried_N].mean() if carried_N.any() else np.inf for carried_N in carried_NL.T]
    confident_NL = np.where((probability_NL >= usual_L) & (probability_NL > own_N), probability_NL, 0.0)
    return np.where(confident_NL.any(axis=1), confident_NL.argmax(axis=1), label_ids_N)
