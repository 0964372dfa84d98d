"""Guards that need no whole run: what a reference, a cache and an answer that is not a number say."""

import math
from dataclasses import replace

import pytest

from alora.lab.bench import guards
from alora.lab.bench.guards import VERDICT_TOLERANCE
from alora.lab.bench.reference import References, agreement, gap, of, steadiness
from alora.lab.bench.trials import Agreement, Piece, Result
from tests.unit.lab.bench.cases import PREFIX, burst

TOLERANCE = VERDICT_TOLERANCE[False]


def codes(refusals):
    return [refusal.code for refusal in refusals]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        pytest.param(Agreement("alora", "PEFT", 3, 3, 1e-5, 0.1), [], id="rounding"),
        pytest.param(Agreement("alora", "PEFT", 3, 3, 0.02, 0.1), ["UNEQUAL_VERDICTS"], id="other probabilities"),
        pytest.param(Agreement("alora", "PEFT", 3, 1, 0.4, 0.1), ["UNEQUAL_VERDICTS"], id="other labels"),
        pytest.param(Agreement("alora", "PEFT", 3, 3, math.nan, 0.1), ["UNEQUAL_VERDICTS"], id="not a number"),
        pytest.param(Agreement("alora", "PEFT", 3, 3, 1e-6, 1e-4), ["INERT_ADAPTERS"], id="adapters that do nothing"),
        pytest.param(Agreement("alora", "PEFT", 0, 0, 0.0, 0.1), ["NOT_COMPARED"], id="nothing compared"),
        pytest.param(Agreement("alora", "alora", 3, 3, 0.1), ["UNSTEADY_VERDICTS"], id="other rounds"),
    ],
)
def test_verdicts_that_show_nothing_are_refused(found, code):
    assert codes(guards.unequal_verdicts(found, TOLERANCE)) == code


def keyed(run):
    return [((PREFIX, answer.piece.policy), answer) for answer in run.results]


def test_an_adapter_that_is_silently_off_is_seen_by_the_comparison():
    known = {key: of(answer) for key, answer in keyed(burst())}
    references = References({"alora": known}, {"alora": 0.5})
    found = references.judge("alora", keyed(burst()))
    assert [one.answered for one in found.answers] == list(known.values())
    assert replace(found, answers=[]) == Agreement("alora", "PEFT's aLoRA", 3, 3, 0.0, 0.5)
    silent = references.judge("alora", keyed(burst(scores=[(-0.69, -0.69)] * 3)))
    assert silent.checked == 3
    assert codes(guards.unequal_verdicts(silent, TOLERANCE)) == ["UNEQUAL_VERDICTS"]
    assert references.judge("base", keyed(burst())).checked == 0  # of another kind


def test_a_missing_score_does_not_vanish():
    right = of(Result(Piece("", 0, 0), scores=(-0.5, -0.9)))
    broken = of(Result(Piece("", 0, 0), scores=(math.nan, math.nan)))
    assert agreement("alora", "PEFT", [(broken, right)]) == Agreement("alora", "PEFT", 1, 0, 1.0)
    assert gap((math.nan, 0.5), (0.5, 0.5)) == gap((0.5, 0.5), (0.5, math.inf)) == 1.0
    assert gap((0.5, 0.5), (0.5, 0.3, 0.2)) == 1.0, "an answer for a policy of other labels"
    (steady,) = steadiness("alora", [*keyed(burst()), *keyed(burst(scores=[(math.nan, 0.0)] * 3))])
    assert steady.worst == 1.0
