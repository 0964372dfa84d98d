"""What figures hold against an adapter: each doubt where it belongs, and none elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from alora.config.schema import EvaluationSettings
from alora.evaluation.baselines import with_leads
from alora.evaluation.doubts import doubts
from alora.evaluation.predict import Predictions
from alora.evaluation.tables import Scored, evaluate
from alora.policy import Policy
from alora.verdict import OperatingPoint

POLICY = Policy("refunds", "No refunds", "Promise nothing.")


def scored(name, signal, label_ids=None, point=None, bootstrap=100, rows=60):
    """A method whose logits know ``signal`` of the label."""
    label_ids = np.arange(rows) % 2 if label_ids is None else label_ids
    noise = np.random.default_rng(3).normal(size=len(label_ids))
    logits = np.stack([noise + signal * (1 - 2 * label_ids), np.zeros(len(label_ids))], axis=1)
    point, predictions = point or OperatingPoint(target="f1"), Predictions(POLICY, logits, label_ids)
    digest = "d" if name == "alora" else None
    figures = evaluate(predictions, point, EvaluationSettings(bootstrap=bootstrap), method=name, adapter_digest=digest)
    return Scored(figures, {"test": predictions})


def figures(own, *others, known=None):
    """Figures of an adapter and of other methods on the same rows, ``known`` of which are of its training."""
    found = with_leads([own, *others], EvaluationSettings(bootstrap=100))
    evaluations = [one.evaluation for one in found]
    return [replace(one, trained_on=known[one.method]) for one in evaluations] if known else evaluations


SURE = OperatingPoint(0.5, 0.5, 0.45, 0.55, "f1", None, 60, 30)
CASES = {
    "good": (figures(scored("alora", 2.0), scored("bag_of_words", 1.0), scored("prompt", 0.1)), []),
    "a tie": (figures(scored("alora", 9.0), scored("bag_of_words", 9.0)), []),
    "words are better": (figures(scored("alora", 1.0), scored("bag_of_words", 3.0)), ["WORDS_BEAT_ADAPTER"]),
    "words are better, maybe": (figures(scored("alora", 1.5), scored("bag_of_words", 1.55)), []),
    "the base is better": (figures(scored("alora", 1.0), scored("prompt", 3.0)), ["PROMPT_BEATS_ADAPTER"]),
    "a method without a price": (figures(scored("alora", 1.0), scored("judge", 3.0)), []),
    "better at its own point alone": (
        figures(scored("alora", 2.0, point=OperatingPoint(threshold=0.97, target="f1")), scored("bag_of_words", 2.0)),
        ["WORDS_BEAT_ADAPTER", "RECALL_LOW"],
    ),
    "cheaper at its own point alone": (
        figures(
            scored("alora", 2.0, point=OperatingPoint(threshold=0.97, target="cost", costs=(1.0, 5.0))),
            scored("bag_of_words", 2.0),
        ),
        ["WORDS_BEAT_ADAPTER", "RECALL_LOW"],
    ),
    "chance": (figures(scored("alora", 0.1)), ["AUROC_COVERS_CHANCE"]),
    "worse than chance": (figures(scored("alora", -2.0)), ["AUROC_COVERS_CHANCE", "RECALL_LOW", "PRECISION_LOW"]),
    "one class": (figures(scored("alora", 3.0, np.zeros(60, int)), scored("bag_of_words", 3.0)), ["ONE_CLASS"]),
    "few rows": (figures(scored("alora", 3.0, rows=49)), ["FEW_ROWS"]),
    "a threshold on nine positives": (
        figures(scored("alora", 2.0, point=replace(SURE, positives=9))),
        ["FEW_POSITIVES"],
    ),
    "on ten": (figures(scored("alora", 2.0, point=replace(SURE, positives=10))), []),
    "a threshold that may lie anywhere": (
        figures(scored("alora", 2.0, point=replace(SURE, threshold_low=0.01))),
        ["THRESHOLD_UNSURE"],
    ),
    "rows that both know": (
        figures(scored("alora", 1.0), scored("bag_of_words", 3.0), known={"alora": 30, "bag_of_words": 30}),
        ["LEAK"],
    ),
    "less than half of them": (
        figures(scored("alora", 1.0), scored("bag_of_words", 3.0), known={"alora": 29, "bag_of_words": 29}),
        ["LEAK", "WORDS_BEAT_ADAPTER"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_doubts(name):
    evaluations, codes = CASES[name]
    found = doubts(evaluations)
    assert [finding.code for finding in found] == codes
    assert {finding.severity for finding in found} <= {"warning"}
    assert {finding.where for finding in found} <= {"refunds"}


def test_a_policy_is_compared_on_its_own_rows_alone():
    own, words = figures(scored("alora", 1.0), scored("bag_of_words", 3.0))
    assert doubts([own, replace(words, policy="tone")]) == []
    assert [finding.code for finding in doubts([own, words])] == ["WORDS_BEAT_ADAPTER"]
