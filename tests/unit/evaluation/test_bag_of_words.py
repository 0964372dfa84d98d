"""What the word counts learn from where there is more text than fits."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.evaluation import bag_of_words
from alora.evaluation.bag_of_words import FLOOR, fit_bag_of_words, log_probabilities
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
