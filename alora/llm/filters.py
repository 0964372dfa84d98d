"""Rows to drop before training: leaks, copies, test rows; and whether counting words solves the rest."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from alora.data.conversation import Conversation, LabelledConversation
from alora.errors import DataError
from alora.evaluation.bag_of_words import held_out_words
from alora.llm.minimal_pairs import Case
from alora.policy import Policy

WORDS = 3  # in a row, that two texts share
# One character of these scripts counts as a word: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_LETTER = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_SPACELESS = re.compile(_LETTER)
_WORD = re.compile(rf"{_LETTER}|(?:(?!{_LETTER})\w)+")
FOLDS = 5


def leak(case: Case, policy: Policy, pair: Sequence[Case] = ()) -> str | None:
    """What in a conversation gives the label away: the policy's id, its title, or a label.

    Everyday words do not: an id or a label without an underscore or a digit, unless it is the positive label and the
    rule does not use it; a title of one or two words; and text that all sides of the pair hold.
    """
    text, sides = _words(_text(case.conversation)), [_words(_text(side.conversation)) for side in pair]
    rule = _words(policy.rule)
    for name in (policy.id, policy.title, *policy.labels):
        words = _words(name)
        telling = len(words) >= (2 * WORDS if _SPACELESS.search(name) else WORDS) or (
            len(words) == 1
            and (re.search(r"[\d_]", name) or (name == policy.positive and len(name) > 3 and not _holds(rule, words)))
        )
        if telling and _holds(text, words) and not (len(sides) > 1 and all(_holds(side, words) for side in sides)):
            return name
    return None


def near_duplicates(
    rows: Sequence[Conversation], groups: Sequence[str], similarity: float, against: Sequence[Conversation] = ()
) -> dict[int, str]:
    """Rows that repeat an earlier row of another group, or one of ``against``: by number, the id of what they repeat.

    Two texts are near-duplicates when they share at least ``similarity`` of their word triples (Jaccard, exact). The
    two sides of a minimal pair are alike on purpose, so only rows of other groups count; of two copies the first stays.
    """
    if not rows:
        return {}
    rows = [*against, *rows]
    owners = [""] * len(against) + [*groups]
    counted: Any = CountVectorizer(analyzer=_triples, dtype=np.int64)  # pyright: ignore[reportArgumentType]
    has_NT = counted.fit_transform(rows).tocsr()
    shared_NN, sizes_N = (has_NT @ has_NT.T).tocsr(), has_NT.getnnz(axis=1)
    copies: dict[int, int] = {}
    for row in range(len(against), len(rows)):
        likely = slice(*shared_NN.indptr[row : row + 2])
        for other, shared in sorted(zip(shared_NN.indices[likely], shared_NN.data[likely], strict=True)):
            kept = other < row and other not in copies and owners[other] != owners[row]
            if kept and shared >= similarity * (sizes_N[row] + sizes_N[other] - shared):
                copies[row] = int(other)
                break
    return {row - len(against): rows[other].id for row, other in copies.items()}


def words_auroc(policy: Policy, rows: Sequence[LabelledConversation], groups: Sequence[str]) -> float | None:
    """AUROC of a bag of words on rows that it did not see, pairs kept together; None when the rows are too few.

    Near 1, counting words solves the rows, and an adapter need not learn the rule from them.
    """
    if len(set(groups)) < FOLDS:
        return None
    try:
        return held_out_words(policy, rows, GroupKFold(FOLDS).split(np.zeros(len(rows)), groups=list(groups)))[1]
    except DataError:
        return None


def length_auroc(policy: Policy, rows: Sequence[LabelledConversation]) -> float | None:
    """AUROC of the texts' lengths, at least 0.5: near 1, one label has the longer conversations."""
    positive = np.array([row.labels[policy.id] == policy.positive for row in rows])
    if positive.all() or not positive.any():
        return None
    auroc = float(roc_auc_score(positive, [len(_text(row.conversation)) for row in rows]))
    return max(auroc, 1 - auroc)


def _triples(conversation: Conversation) -> frozenset[tuple[str, ...]]:
    words = _words(_text(conversation))
    return frozenset(tuple(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _holds(text: Sequence[str], words: Sequence[str]) -> bool:
    """Whether ``words`` follow each other in ``text``; the last one may be a plural."""
    *before, last = words
    ends = {last, f"{last}s", f"{last}es"}
    span = len(words)
    return any(
        text[start + span - 1] in ends and [*text[start : start + span - 1]] == before
        for start in range(len(text) - span + 1)
    )


def _text(conversation: Conversation) -> str:
    return "\n".join(message.text for message in conversation.messages)
