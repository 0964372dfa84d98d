"""Scores that are of no use cost their method one policy, whatever is wrong with them."""

import re

import numpy as np
import pytest

from alora.config.schema import EvaluationSettings
from alora.lab.compare.figures import compare
from alora.lab.compare.task import RowScores, Scores

SETTINGS = EvaluationSettings(bootstrap=20)


def rows(labels: list[int], asked: int | None = None, bad: bool = False) -> RowScores:
    logits_NL = np.array([[1.0, 0.0] if label == 0 else [0.0, 1.0] for label in labels]).reshape(-1, 2)
    if bad:
        logits_NL[0, 0] = np.nan
    ids = tuple(str(place) for place in range(len(labels)))
    return RowScores.of(ids, np.array(labels, dtype=np.int64), logits_NL, asked or len(labels))


def scores(arm: str, policy: str, validation: RowScores, test: RowScores) -> Scores:
    trained = arm == "alora"
    return Scores(arm, policy, 0 if trained else None, 4 if trained else None, validation, test)


GOOD = rows([0, 1] * 5)
WHOLE = [scores("alora", policy, GOOD, GOOD) for policy in ("red", "blue")]


@pytest.mark.parametrize(
    ("validation", "test", "words"),
    [
        (rows([1] * 5, 10), GOOD, "5 of 10 validation and 10 of 10 test rows have an answer.*one class"),
        (rows([], 10), GOOD, "0 of 10 validation.*no rows to calibrate"),
        (GOOD, rows([], 10), "0 of 10 test.*0 test rows"),
        (GOOD, rows([0] * 5, 10), "5 of 10 test.*5 test rows"),
        (rows([0, 1] * 5, bad=True), GOOD, "^label logits of 1 of 10 rows are not finite"),
        (GOOD, rows([0, 1] * 5, bad=True), "^label logits of 1 of 10 rows are not finite"),
    ],
)
def test_a_pair_without_use_is_left_out_with_the_reason(validation, test, words):
    found = compare(
        [*WHOLE, scores("judge", "red", validation, test), scores("judge", "blue", GOOD, GOOD)], SETTINGS, 4
    )
    assert [(item.arm, item.policy) for item in found.methods if item.arm == "judge"] == [
        ("judge", "blue"),
        ("judge", None),
    ]
    assert {gap.policy for gap in found.gaps} == {"blue", None}
    assert found.left_out.keys() == {"judge"}
    (reason,) = found.left_out["judge"].values()
    assert re.search(words, reason)
