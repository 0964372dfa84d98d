"""Which labels look wrong: confident learning (Northcutt et al. 2021) on predictions for rows that were held out."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from alora.data.conversation import LabelledConversation
from alora.errors import DataError, LeftOut
from alora.evaluation.bag_of_words import held_out_words
from alora.evaluation.predict import labels_of
from alora.evaluation.resampling import Floats
from alora.policy import Policy

FOLDS = 5
LEAST = 3  # rows of a label: one to hold out, and two to learn from
WORDS_KNOW = 0.75  # AUROC below which the words' doubts say little of the labels


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
