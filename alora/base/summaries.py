"""Questions and answers about plain-text documents, made without any label.

A language-model objective alone leaves a small base unable to say anything about a conversation as a whole. Here each
document is followed by short exchanges whose answers can be computed from the text (its key words, its topic, who
speaks last, ...), so that the tokens behind a conversation learn to gather what it says. An adapter whose activation
starts behind the conversation then has something to redirect.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_matrix

N_PROPERTIES = 48
N_TOPICS = 64
KEY_WORDS = 5
_SPEAKER = re.compile(r"^(User|Assistant|System): ", re.MULTILINE)
_WORD = r"[^\W\d_]{3,}"


@dataclass(frozen=True)
class Exchange:
    """One question about a document and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class SummarisedDocument:
    """A document (lines ``User: ...`` and ``Assistant: ...``, or plain prose) and exchanges about it."""

    text: str
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True)
class _Measures:
    """What is known of D documents over W words: tf-idf weights, K latent coordinates, one of N topics each."""

    words_W: "np.ndarray"
    tfidf_DW: "csr_matrix"
    latent_DK: "np.ndarray"
    thresholds_K: "np.ndarray"
    topic_D: "np.ndarray"
    topic_names: tuple[str, ...]


def summarise(documents: Sequence[str], per_document: int = 5, seed: int = 0) -> list[SummarisedDocument]:
    """Each document with ``per_document`` exchanges about it, deterministic in ``seed``.

    One document in six gets its last message swapped for another document's, so that "does the last message fit?"
    has both answers.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    texts, fits = _swap_last_messages(documents, rng)
    measures = _measure(texts, seed)
    return [
        SummarisedDocument(text, _exchanges(text, fit, row, measures, per_document, rng))
        for row, (text, fit) in enumerate(zip(texts, fits, strict=True))
    ]


def last_message(text: str) -> str:
    """The last speaker's message without the speaker's name; the whole text when nobody is named."""
    starts = list(_SPEAKER.finditer(text))
    return text[starts[-1].end() :] if starts else text


def _swap_last_messages(documents: Sequence[str], rng: "np.random.Generator") -> tuple[list[str], list[bool | None]]:
    """The documents, some with a foreign last message, and for each: whether it fits (None: one message only)."""
    dialogues = [row for row, text in enumerate(documents) if len(_SPEAKER.findall(text)) > 1]
    texts = list(documents)
    fits: list[bool | None] = [None] * len(documents)
    for row in dialogues:
        fits[row] = True
        if rng.random() < 1 / 6:
            own = last_message(documents[row])
            foreign = last_message(documents[dialogues[rng.integers(len(dialogues))]])
            if foreign != own:
                texts[row] = documents[row][: len(documents[row]) - len(own)] + foreign
                fits[row] = False
    return texts, fits


def _measure(texts: Sequence[str], seed: int) -> _Measures:
    import numpy as np
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=_WORD, sublinear_tf=True, min_df=3, max_df=0.2)
    tfidf_DW = vectorizer.fit_transform(texts)
    words_W = vectorizer.get_feature_names_out()
    n_latent = min(N_PROPERTIES, len(words_W) - 1, len(texts) - 1)
    latent_DK = TruncatedSVD(n_latent, random_state=seed).fit_transform(tfidf_DW)
    unit_DK = latent_DK / (np.linalg.norm(latent_DK, axis=1, keepdims=True) + 1e-9)
    n_topics = min(N_TOPICS, len(texts))
    # The estimator takes a number of starts as well; its types say "auto" only (scikit-learn 1.9).
    clusters = MiniBatchKMeans(n_topics, n_init=3, random_state=seed)  # pyright: ignore[reportArgumentType]
    topic_D = clusters.fit_predict(unit_DK)
    names = []
    for topic in range(n_topics):
        weights_W = np.asarray(tfidf_DW[np.flatnonzero(topic_D == topic)].sum(axis=0)).ravel()
        names.append(", ".join(words_W[np.argsort(-weights_W, kind="stable")[:3]]))
    return _Measures(words_W, tfidf_DW, unit_DK, np.median(unit_DK, axis=0), topic_D, tuple(names))


def _exchanges(
    text: str, fit: bool | None, row: int, measures: _Measures, count: int, rng: "np.random.Generator"
) -> tuple[Exchange, ...]:
    import numpy as np

    start, end = measures.tfidf_DW.indptr[row : row + 2]
    weights: np.ndarray = measures.tfidf_DW.data[start:end]
    heaviest = np.argsort(-weights, kind="stable")
    own_words = measures.words_W[measures.tfidf_DW.indices[start:end][heaviest]]
    made = [_property(row, measures, rng) for _ in range(count)]
    made += [_topic(row, measures, rng), _which_words(own_words, measures.words_W, rng), _last_speaker(text)]
    made += [_word_in_last_message(text, own_words, measures.words_W, rng)]
    made += [Exchange("List the key words of the conversation.", ", ".join(own_words[:KEY_WORDS]) or "none")]
    if fit is not None:
        made.append(Exchange("Does the last message fit the conversation? Answer Yes or No.", _yes(fit)))
    return tuple(made[pick] for pick in rng.permutation(len(made))[:count])


def _property(row: int, measures: _Measures, rng: "np.random.Generator") -> Exchange:
    """A named but unexplained property: which side of the median a latent coordinate lies on."""
    which = int(rng.integers(len(measures.thresholds_K)))
    holds = measures.latent_DK[row, which] > measures.thresholds_K[which]
    return Exchange(f"Does the conversation have property {which}? Answer Yes or No.", _yes(bool(holds)))


def _topic(row: int, measures: _Measures, rng: "np.random.Generator") -> Exchange:
    own = int(measures.topic_D[row])
    if rng.random() < 0.3:
        return Exchange("What is the conversation about?", measures.topic_names[own])
    asked = own if rng.random() < 0.5 else int(rng.integers(len(measures.topic_names)))
    return Exchange(f"Is the conversation about {measures.topic_names[asked]}? Answer Yes or No.", _yes(asked == own))


def _which_words(own_words: "np.ndarray", words_W: "np.ndarray", rng: "np.random.Generator") -> Exchange:
    there = list(rng.choice(own_words[:20], min(len(own_words), int(rng.integers(0, 4))), replace=False))
    foreign = [word for word in rng.choice(words_W, 4 - len(there)) if word not in set(own_words)]
    asked = rng.permutation(there + foreign)
    answer = ", ".join(word for word in asked if word in there) or "none"
    return Exchange(f"Which of these words occur in the conversation: {', '.join(asked)}?", answer)


def _last_speaker(text: str) -> Exchange:
    speakers = _SPEAKER.findall(text)
    return Exchange("Who speaks last?", speakers[-1] if speakers else "nobody")


def _word_in_last_message(
    text: str, own_words: "np.ndarray", words_W: "np.ndarray", rng: "np.random.Generator"
) -> Exchange:
    last = set(re.findall(_WORD, last_message(text).lower()))
    candidates = [word for word in own_words if (word in last)] if rng.random() < 0.5 else []
    if not candidates:
        candidates = [word for word in own_words if word not in last] if rng.random() < 0.5 else []
    word = str(rng.choice(candidates if candidates else words_W))
    return Exchange(f"Does the last message speak of {word}? Answer Yes or No.", _yes(word in last))


def _yes(holds: bool) -> str:
    return "Yes" if holds else "No"
