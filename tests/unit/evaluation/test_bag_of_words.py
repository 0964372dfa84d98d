"""What the word counts learn from where there is more text than fits; and labels that were turned on purpose are
found by them, sound ones left alone."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.errors import DataError
from alora.evaluation import bag_of_words
from alora.evaluation.bag_of_words import (
    FLOOR,
    WORDS_KNOW,
    doubtful_labels,
    fit_bag_of_words,
    likelier_labels,
    log_probabilities,
    without_doubtful,
)
from alora.policy import Policy

POLICY = Policy("tone", "No shouting", "")


def row(number: int, label: str) -> LabelledConversation:
    text = f"row{number} {'loud' if label == 'violation' else 'calm'}"
    return LabelledConversation(Conversation(str(number), (Message("user", text),)), {"tone": label})


ROWS = [row(number, "violation" if number % 40 == 0 else "ok") for number in range(200)]


def learnt(rows) -> set[int]:
    words = vars(fit_bag_of_words(POLICY, rows).pipeline[0])["vocabulary_"]
    return {int(word[3:]) for word in words if word.startswith("row") and " " not in word}


@pytest.mark.parametrize(("room", "count"), [(10**6, 200), (1000, 50), (0, 4)])
def test_of_more_text_than_fits_rare_labels_stay_whole(monkeypatch, room, count):
    monkeypatch.setattr(bag_of_words, "MOST_CHARACTERS", room)
    taken = learnt(ROWS)
    assert len(taken) == pytest.approx(count, rel=0.2)
    if room:
        assert {0, 40, 80, 120, 160} <= taken
        assert min(taken - {0}) < 50 < 150 < max(taken), "from all of the file"


def test_rows_are_predicted_in_their_order_however_many_at_once(monkeypatch):
    bag = fit_bag_of_words(POLICY, ROWS)
    whole = bag.predict(ROWS).logits_NL
    monkeypatch.setattr(bag_of_words, "ROWS_AT_ONCE", 7)
    assert np.array_equal(bag.predict(ROWS).logits_NL, whole)
    assert (whole.argmax(axis=1) == [number % 40 != 0 for number in range(200)]).all()
    assert bag.predict([]).logits_NL.shape == (0, 2)


def test_labels_that_training_lacked_have_the_floor_and_the_others_their_own_column():
    fitted: Any = SimpleNamespace(classes_=np.array([0, 2]), predict_log_proba=lambda rows: np.log([[0.25, 0.75]] * 2))
    found = log_probabilities(fitted, ["a", "b"], 4)
    assert found.tolist() == [[np.log(0.25), FLOOR, np.log(0.75), FLOOR]] * 2


REFUNDS = Policy("refunds", "No refunds", "Never promise money.")
WORDS = {
    "violation": ["money", "refund", "voucher", "back", "free"],
    "ok": ["return", "policy", "team", "ask", "details"],
}


def rows(turned: set[int], count: int = 200) -> list[LabelledConversation]:
    made = []
    for number in range(count):
        draw, truth = random.Random(number), REFUNDS.labels[number % 2]
        text = " ".join(draw.choices(WORDS[truth], k=6) + draw.choices(["the", "order", "shop", "today"], k=6))
        label = REFUNDS.labels[(number + 1) % 2] if number in turned else truth
        conversation = Conversation(str(number), (Message("assistant", text),))
        made.append(LabelledConversation(conversation, {"refunds": label}, f"train.jsonl:{number + 1}"))
    return made


def test_turned_labels_are_found_and_sound_ones_left_alone():
    turned = set(random.Random(1).sample(range(200), 12))
    found, auroc = doubtful_labels(REFUNDS, rows(turned))
    assert WORDS_KNOW < auroc < 1
    named = {int(doubt.row.conversation.id) for doubt in found}
    assert named <= turned
    assert len(named) >= 8
    assert all(doubt.label != doubt.likelier for doubt in found)
    assert [doubt.probability for doubt in found] == sorted((doubt.probability for doubt in found), reverse=True)
    assert doubtful_labels(REFUNDS, rows(set())) == ([], 1.0)


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (1, 1), (1, 9), (2, 9), (0, 100)])
def test_too_few_rows_of_a_label_to_hold_any_out(counts):
    few = [row for label, count in zip(REFUNDS.labels, counts, strict=True)
           for row in [row for row in rows(set()) if row.labels["refunds"] == label][:count]]  # fmt: skip
    with pytest.raises(DataError, match="too few rows of a label to hold any out"):
        doubtful_labels(REFUNDS, few)


def test_no_label_is_likelier_that_is_less_probable_than_the_row_s_own():
    """Rows 0 and 1 carry label 0, which has 0.725 on average; row 2 carries label 1, at 0.4."""
    probability_NL = np.array([[0.55, 0.45], [0.9, 0.1], [0.6, 0.4]])
    assert likelier_labels(probability_NL, np.array([0, 0, 1])).tolist() == [0, 0, 1]
    probability_NL[0] = 0.45, 0.55
    assert likelier_labels(probability_NL, np.array([0, 0, 1])).tolist() == [1, 0, 1]


def test_without_doubtful_labels_the_other_policies_keep_theirs():
    turned = set(random.Random(1).sample(range(200), 12))
    given = [replace(row, labels={**row.labels, "other": "ok"}) for row in rows(turned)]
    doubted = {doubt.row.where for doubt in doubtful_labels(REFUNDS, given)[0]}
    kept, left_out = without_doubtful([REFUNDS], given)
    assert not left_out
    assert len(kept) == len(given)
    assert {row.where for row in kept if "refunds" not in row.labels} == doubted
    assert len(doubted) >= 8
    assert all(row.labels["other"] == "ok" for row in kept)


def test_a_policy_whose_labels_cannot_be_doubted_is_left_out_alone():
    given = [replace(row, labels={**row.labels, "other": "ok"}) for row in rows({10})]
    kept, left_out = without_doubtful([REFUNDS, replace(REFUNDS, id="other")], given)
    assert list(left_out) == ["other"]
    assert sum("refunds" not in row.labels for row in kept) == 1
