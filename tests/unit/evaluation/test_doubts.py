"""What figures hold against an adapter: each doubt where it belongs, and none elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from alora.config.schema import EvaluationSettings
from alora.evaluation.calibration import TEMPERATURE_BOUNDS
from alora.evaluation.doubts import doubts
from alora.evaluation.predict import Predictions
from alora.evaluation.records import Estimate
from alora.evaluation.tables import evaluate
from alora.policy import Policy
from alora.verdict import OperatingPoint

POLICY = Policy("refunds", "No refunds", "Promise nothing.")


def method(name, signal, label_ids=None, temperature=1.0, bootstrap=100, fitted=(0, 0)):
    """Figures of a method whose logits know ``signal`` of the label."""
    label_ids = np.arange(60) % 2 if label_ids is None else label_ids
    noise = np.random.default_rng(3).normal(size=len(label_ids))
    logits = np.stack([noise + signal * (1 - 2 * label_ids), np.zeros(len(label_ids))], axis=1)
    rows, positives = fitted
    point = OperatingPoint(temperature, 0.5, rows=rows, positives=positives)
    settings = EvaluationSettings(bootstrap=bootstrap)
    predictions = Predictions(POLICY, logits, label_ids)
    return evaluate(predictions, point, settings, method=name, adapter_digest="d" if name == "alora" else None)


CASES = {
    "good": (method("alora", 2.0), [method("bag_of_words", 1.0), method("prompt", 0.1)], []),
    "as good as the words": (method("alora", 9.0), [method("bag_of_words", 9.0)], ["WORDS_BEAT_ADAPTER"]),
    "words are better": (method("alora", 1.0), [method("bag_of_words", 2.0)], ["WORDS_BEAT_ADAPTER"]),
    "the base is better": (method("alora", 1.0), [method("prompt", 2.0)], ["PROMPT_BEATS_ADAPTER"]),
    "a method without a price": (method("alora", 1.0), [method("judge", 2.0)], []),
    "chance": (method("alora", 0.1), [], ["AUROC_COVERS_CHANCE"]),
    "worse than chance": (method("alora", -2.0), [], ["AUROC_COVERS_CHANCE"]),
    "no interval": (method("alora", -2.0, bootstrap=0), [], ["AUROC_COVERS_CHANCE"]),
    "one class": (method("alora", 1.0, np.zeros(9, int)), [method("bag_of_words", 2.0)], ["ONE_CLASS"]),
    "a threshold on nine positives": (method("alora", 2.0, fitted=(60, 9)), [], ["FEW_POSITIVES"]),
    "on ten": (method("alora", 2.0, fitted=(60, 10)), [], []),
    "at a bound": (method("alora", 2.0, temperature=TEMPERATURE_BOUNDS[1]), [], ["CALIBRATION_AT_BOUND"]),
    "rows that both know": (
        replace(method("alora", 9.0), trained_on=30),
        [replace(method("bag_of_words", 9.0), trained_on=30)],
        ["LEAK"],
    ),
    "less than half of them": (
        replace(method("alora", 9.0), trained_on=29),
        [replace(method("bag_of_words", 9.0), trained_on=29)],
        ["LEAK", "WORDS_BEAT_ADAPTER"],
    ),
    "rows that it was calibrated by": (
        replace(method("alora", 9.0), trained_on=60),
        [method("bag_of_words", 9.0)],
        ["LEAK", "WORDS_BEAT_ADAPTER"],
    ),
    "all of it": (
        method("alora", 0.0, temperature=TEMPERATURE_BOUNDS[0]),
        [method("bag_of_words", 2.0), method("prompt", 1.0)],
        ["AUROC_COVERS_CHANCE", "WORDS_BEAT_ADAPTER", "PROMPT_BEATS_ADAPTER", "CALIBRATION_AT_BOUND"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_doubts(name):
    own, others, codes = CASES[name]
    found = doubts([own, *others])
    assert [finding.code for finding in found] == codes
    assert {finding.severity for finding in found} <= {"warning"}
    assert {finding.where for finding in found} <= {"refunds"}


def test_a_policy_is_held_against_its_own_rows_alone():
    others = replace(method("bag_of_words", 5.0), policy="tone")
    assert doubts([method("alora", 1.0), others]) == []
    both = [method("alora", 1.0), replace(method("alora", -1.0), policy="tone"), others]
    assert {(finding.where, finding.code) for finding in doubts(both)} == {
        ("tone", "AUROC_COVERS_CHANCE"),
        ("tone", "WORDS_BEAT_ADAPTER"),
    }


@pytest.mark.parametrize(("words", "beaten"), [(0.9996, True), (0.9984, False)])
def test_methods_are_compared_in_the_digits_that_are_shown(words, beaten):
    def of(name, auroc):
        found = method(name, 2.0)
        figures = {**found.metrics.figures, "auroc": Estimate(auroc, 0.9, 1.0)}
        return replace(found, metrics=replace(found.metrics, figures=figures))

    codes = [finding.code for finding in doubts([of("alora", 0.9999), of("bag_of_words", words)])]
    assert codes == ["WORDS_BEAT_ADAPTER"] * beaten


def test_a_doubt_says_the_figures():
    own, words = method("alora", 0.1), method("bag_of_words", 2.0)
    chance, beaten = doubts([own, words])
    auroc = own.metrics.figures["auroc"]
    assert (
        f"AUROC {auroc.value:.3f} (95 % interval {auroc.low:.3f} to {auroc.high:.3f}) on 60 test rows" in chance.problem
    )
    assert f"not above {words.metrics.value('auroc'):.3f} of a bag of words" in beaten.problem
