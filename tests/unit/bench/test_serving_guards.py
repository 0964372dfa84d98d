"""Each guard of the serving benchmark, with a fault planted for it to find."""

import math

import numpy as np
import pytest

from alora.bench.measure import paired_ratio
from alora.bench.serving import guards
from alora.bench.serving.records import Trial
from alora.bench.serving.reference import Agreement, compare, difference, merge, probabilities
from alora.bench.serving.statistics import mean_ratio
from tests.unit.bench.serving_cases import PREFIX, burst, trials


def test_equal_work_passes():
    assert guards.unequal_work(trials("alora", [1, 1]), trials("lora", [9, 9], cached=[0, 0, 0], kind="lora")) is None


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param({"suffix": 9}, "the prompts differ", id="longer prompts"),
        pytest.param({"places": (0, 1, 5)}, "ours did not", id="another policy"),
        pytest.param({"places": (0, 1)}, "counted 1 times", id="fewer adapters, not said"),
        pytest.param({"places": (0, 1, 1), "cached": [0, 32, 32]}, "counts a request twice", id="one policy twice"),
    ],
)
def test_unequal_work_is_refused(fault, told):
    reason = guards.unequal_work(trials("alora", [1, 1]), trials("lora", [9, 9], **fault))
    assert reason is not None
    assert told in reason


def test_more_output_is_unequal_work():
    ours, theirs = trials("alora", [1]), trials("lora", [9])
    longer = theirs[0].burst
    more = [type(p)(p.digest, p.place, p.prompt_tokens, 2) for p in longer.pieces]
    talking = Trial("lora", 0, 0, type(longer)(**{**vars(longer), "pieces": tuple(more)}))
    assert "tokens out" in str(guards.unequal_work(ours, [talking]))


def test_a_part_of_the_battery_counts_as_what_it_left_out_and_not_more():
    ours = trials("alora", [1, 1])
    assert guards.unequal_work(ours, trials("lora", [3, 3], scale=3.0, places=(1,), cached=[0])) is None
    assert "counted 4 times" in str(
        guards.unequal_work(ours, trials("lora", [3, 3], scale=4.0, places=(1,), cached=[0]))
    )


def test_ours_must_do_the_same_in_every_round():
    mixed = [*trials("alora", [1]), *trials("alora", [1], places=(0, 1))]
    assert "every round" in str(guards.unequal_work(mixed, trials("lora", [9, 9])))


def test_verdicts_within_rounding_pass():
    assert guards.wrong_verdicts(Agreement("PEFT's aLoRA", 3, 3, 1e-5, 0.1), guards.TOLERANCE) is None


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        pytest.param(Agreement("PEFT's aLoRA", 3, 3, 0.02, 0.1), "probabilities by up to", id="other probabilities"),
        pytest.param(Agreement("PEFT's aLoRA", 3, 1, 0.4, 0.1), "2 of 3 verdicts differ", id="other labels"),
        pytest.param(Agreement("PEFT's aLoRA", 3, 3, math.nan, 0.1), "probabilities by up to", id="not a number"),
        pytest.param(Agreement("PEFT's aLoRA", 3, 3, 1e-6, 1e-4), "prove nothing", id="adapters that do nothing"),
        pytest.param(Agreement("PEFT's aLoRA", 0, 0, 0.0, 0.1), "no verdict was compared", id="nothing compared"),
        pytest.param(None, "not compared", id="no reference"),
    ],
)
def test_verdicts_that_prove_nothing_are_refused(planted, told):
    assert told in str(guards.wrong_verdicts(planted, guards.TOLERANCE))


def test_an_adapter_that_is_silently_off_is_seen_by_the_comparison():
    right = {(PREFIX, place): found for place, found in enumerate(probabilities(burst()))}
    assert compare(PREFIX, burst(), right, "PEFT", 0.1).worst == 0.0
    silent = burst(scores=[(-0.69, -0.69)] * 3)
    found = compare(PREFIX, silent, right, "PEFT", 0.1)
    assert found.checked == 3
    assert guards.wrong_verdicts(found, guards.TOLERANCE)
    assert merge(found, found).checked == 6


def test_a_missing_score_does_not_vanish():
    right = {(PREFIX, 0): probabilities(burst())[0]}
    broken = burst(scores=[(math.nan, math.nan), (-0.5, -0.9), (-0.5, -0.9)])
    assert compare(PREFIX, broken, right, "PEFT", None) == Agreement("PEFT", 1, 0, 1.0)
    assert merge(Agreement("PEFT", 1, 1, 0.0), Agreement("PEFT", 1, 1, math.nan)).worst == 1.0
    assert difference((math.nan, 0.5), (0.5, 0.5)) == difference((0.5, 0.5), (0.5, math.inf)) == 1.0


def test_unsteady_verdicts_are_refused():
    assert guards.unsteady_verdicts(1e-6, guards.TOLERANCE) is None
    assert "round to round" in str(guards.unsteady_verdicts(0.1, guards.TOLERANCE))


def test_a_cache_that_was_not_emptied_is_seen():
    assert guards.not_cold(trials("alora", [1]), shared_tokens=32) is None
    assert "not empty" in str(guards.not_cold(trials("alora", [1], cached=[32, 32, 32]), 32))
    assert "hit 32 tokens of 0" in str(guards.not_cold(trials("lora", [1], cached=[0, 0, 32]), 0))


def test_a_missing_round_is_seen():
    assert guards.missing_rounds(trials("alora", [1, 1]), trials("lora", [9, 9]), "lora") is None
    assert "rounds [0]" in str(guards.missing_rounds(trials("alora", [1, 1]), trials("lora", [9]), "lora"))
    twice = [*trials("lora", [9]), *trials("lora", [9])]
    assert guards.missing_rounds(trials("alora", [1, 1]), twice, "lora")


def test_too_few_slots_are_seen():
    assert guards.starved(slots=6, adapters=6) is None
    assert "some wait" in str(guards.starved(slots=5, adapters=6))


def test_a_biased_null_arm_is_seen():
    fair = paired_ratio([1.0, 1.1, 0.9, 1.02], [1.0, 1.0, 1.0, 1.0])
    slow_second = paired_ratio([1.2, 1.3, 1.25, 1.21], [1.0, 1.0, 1.0, 1.0])
    assert guards.biased_null(fair, 4) is None
    assert "in place of" in str(guards.biased_null(slow_second, 4))
    assert "4 rounds, which covers 87.5%" in str(guards.biased_null(slow_second, 4))


def test_the_null_interval_covers_what_it_says():
    """By simulation, at the few rounds that a run has; the control is a narrower interval."""
    generator = np.random.default_rng(0)
    rounds = np.exp(generator.normal(0.0, 0.05, size=(2000, 3)))
    for coverage in (guards.NULL_COVERAGE, 0.5):
        held = np.mean([mean_ratio(ratios, coverage).contains(1.0) for ratios in rounds])
        assert held == pytest.approx(coverage, abs=0.03)


def test_a_null_arm_that_is_slower_in_every_round_is_seen_in_three():
    assert mean_ratio([1.1, 1.11, 1.09], guards.NULL_COVERAGE).low > 1
    assert mean_ratio([0.97, 1.04, 1.01], guards.NULL_COVERAGE).contains(1.0)
