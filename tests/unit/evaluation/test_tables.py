"""Predictions, figures of them, and the file that holds these."""

import numpy as np
import pytest

from alora.config.schema import EvaluationSettings
from alora.data.conversation import Conversation, LabelledConversation, Message
from alora.errors import DataError, PolicyError
from alora.evaluation.calibration import positive_probability
from alora.evaluation.metrics import compute_metrics
from alora.evaluation.predict import Predictions, labels_of, predict
from alora.evaluation.tables import evaluate, read_evaluations, write_evaluations
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.verdict import OperatingPoint

REFUNDS = Policy("refunds", "Promised refunds", "No refund is promised.")
TONE = Policy("tone", "Tone", "Stay polite.", ("rude", "dry", "warm"), ("A", "B", "C"))
SETTINGS = EvaluationSettings(bootstrap=50)


def row(text: str, **labels: str) -> LabelledConversation:
    return LabelledConversation(Conversation(text, (Message("user", text),)), labels)


def test_an_evaluation_is_of_tempered_probabilities_at_the_points_threshold():
    rng = np.random.default_rng(4)
    label_ids = (rng.random(60) < 0.5).astype(np.int64)
    logits = np.stack([rng.normal(3 - 6 * label_ids, 4), np.zeros(60)], axis=1)
    point = OperatingPoint(3.0, 0.7)
    found = evaluate(Predictions(REFUNDS, logits, label_ids, 7), point, SETTINGS, method="alora", seed=5)
    wanted = compute_metrics(label_ids == 0, positive_probability(logits, 3.0), 0.7, SETTINGS.bootstrap, 5)
    assert (found.metrics, found.truncated, found.operating_point) == (wanted, 7, point)
    assert found.metrics != compute_metrics(label_ids == 0, positive_probability(logits, 3.0), 0.7, 50, 0)


class _Renderer(Renderer):
    """A prefix is its conversation; the model below reads it."""

    def __init__(self):
        pass

    def windows(self, conversation):
        return [_Prefix(conversation.messages[0].content)]


class _Prefix:
    def __init__(self, text):
        self.text = text
        self.token_ids = tuple(range(len(text)))
        self.truncation = object() if "long" in text else None


class _LengthScorer:
    """Adapter ``i`` answers with the length of the text in its label ``i``: a scorer of the same interface."""

    calls = 0
    asked = ()

    def score_rows(self, questions):
        self.calls += 1
        self.asked += tuple(tuple(question.asked) for question in questions)
        return [
            [np.eye(3 if suffix == "tone" else 2)[0] * len(question.prefix.text) for suffix in question.suffixes]
            for question in questions
        ]


def test_predict_scores_a_row_once_and_keeps_it_where_it_is_labelled():
    rows = [
        row("aa", refunds="ok", tone="warm"),
        row("b", tone="rude"),
        row("skipped", other="x"),
        row("too long", refunds="violation"),
    ]
    scorer = _LengthScorer()
    refunds, tone = predict(scorer, _Renderer(), [REFUNDS, TONE], ["refunds", "tone"], rows, progress="")
    assert (scorer.calls, scorer.asked) == (1, ((0, 1), (1,), (0,)))
    assert refunds.logits_NL.tolist() == [[2, 0], [8, 0]]
    assert refunds.label_ids_N.tolist() == [1, 0]
    assert (refunds.truncated, tone.truncated) == (1, 0)
    assert tone.logits_NL.tolist() == [[2, 0, 0], [1, 0, 0]]
    assert tone.label_ids_N.tolist() == [2, 0]
    assert refunds.label_counts == {"violation": 1, "ok": 1}


@pytest.mark.parametrize(("most", "calls"), [(11, 1), (10, 2), (3, 2), (2, 3)])
def test_predict_scores_as_many_rows_at_once_as_fit(most, calls):
    rows = [row("aa", tone="warm"), row("b", tone="rude"), row("too long", tone="warm")]
    scorer = _LengthScorer()
    (tone,) = predict(scorer, _Renderer(), [TONE], ["tone"], rows, progress="", max_tokens=most)
    assert scorer.calls == calls
    assert tone.logits_NL[:, 0].tolist() == [2, 1, 8]


def test_predict_refusals_and_nothing_to_do():
    (empty,) = predict(_LengthScorer(), _Renderer(), [REFUNDS], ["a"], [], progress="")
    assert empty.logits_NL.shape == (0, 2)
    with pytest.raises(DataError):
        evaluate(empty, OperatingPoint(), SETTINGS, method="alora")
    with pytest.raises(PolicyError):
        labels_of(REFUNDS, [row("x", refunds="maybe")])


def evaluation(target: str = "f1"):
    rng = np.random.default_rng(0)
    label_ids = (rng.random(50) < 0.5).astype(np.int64)
    logits = np.stack([rng.normal(1 - 2 * label_ids), np.zeros(50)], axis=1)
    point = OperatingPoint(1.25, 0.4, 0.3, 0.5, target, None if target == "f1" else 0.05, 30, 15)
    return evaluate(Predictions(REFUNDS, logits, label_ids, 2), point, SETTINGS, method="alora", adapter_digest="d1")


def test_round_trip_through_the_file(tmp_path):
    file = tmp_path / "new" / "evaluation.json"
    write_evaluations(file, [evaluation(), evaluation("fpr")])
    assert read_evaluations(file) == [evaluation(), evaluation("fpr")]
    assert [path.name for path in file.parent.iterdir()] == ["evaluation.json"]
