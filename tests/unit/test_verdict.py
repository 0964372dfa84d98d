"""Label logits → verdict: the arithmetic, its threshold, and what it refuses."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alora.errors import AdapterError, ConfigError
from alora.policy import Policy
from alora.verdict import OperatingPoint, Verdict, Verdicts, highest, label_probabilities, make_verdict

POLICY = Policy("refunds", "Promised refunds", "No refund is promised.")
TERNARY = Policy("tone", "Tone", "Stay polite.", ("rude", "dry", "warm"), ("A", "B", "C"))
LOGITS = st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=5)


@given(LOGITS, st.floats(0.05, 20.0))
def test_probabilities_are_a_softmax(logits, temperature):
    probabilities = label_probabilities(logits, temperature)
    assert math.fsum(probabilities) == pytest.approx(1.0)
    assert max(range(len(logits)), key=logits.__getitem__) == max(
        range(len(logits)), key=lambda i: (probabilities[i], logits[i])
    )


def test_threshold_decides_not_the_argmax():
    logits = [math.log(3), 0.0]  # probability 0.75
    assert make_verdict(POLICY, logits, OperatingPoint(1.0, 0.75), "d").label == "violation"
    assert make_verdict(POLICY, logits, OperatingPoint(1.0, 0.76), "d").label == "ok"


def test_the_threshold_is_of_the_tempered_probability():
    verdict = make_verdict(POLICY, [2 * math.log(3), 0.0], OperatingPoint(2.0, 0.76), "d")
    assert (verdict.label, verdict.threshold) == ("ok", 0.76)
    assert verdict.probability == pytest.approx(0.75)


def test_below_the_threshold_the_best_other_label_answers():
    verdict = make_verdict(TERNARY, [1.0, 0.2, 0.9], OperatingPoint(threshold=0.99), "d")
    assert verdict.label == "warm"


def test_a_threshold_above_one_never_fires():
    never = OperatingPoint(threshold=math.nextafter(1.0, 2.0))
    assert make_verdict(POLICY, [1e4, -1e4], never, "d").label == "ok"


def test_the_highest_window_is_the_one_whose_positive_label_is_likeliest():
    """Not the one that leads the best other label by most: with three labels the others add up."""
    ahead, likeliest = [1.0, 0.9, 0.9], [1.0, 0.95, -9.0]
    assert label_probabilities(likeliest)[0] > label_probabilities(ahead)[0]
    assert highest([ahead, likeliest]) == highest([likeliest, ahead]) == likeliest


@given(st.integers(2, 5).flatmap(lambda labels: st.lists(
    st.lists(st.floats(-20, 20), min_size=labels, max_size=labels), min_size=1, max_size=5
)))  # fmt: skip
def test_no_window_has_a_higher_probability_than_the_highest(logits_WL):
    found = label_probabilities(highest(logits_WL))[0]
    assert found == pytest.approx(max(label_probabilities(logits)[0] for logits in logits_WL), rel=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("order", [1, -1])
def test_a_window_without_finite_logits_leaves_no_verdict_to_the_others(bad, order):
    window = [bad, 1.0]
    assert highest([[1.0, 2.0], window, [9.0, 1.0]][::order]) is window
    with pytest.raises(AdapterError, match="overflow"):
        make_verdict(POLICY, window, OperatingPoint(), "d")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_no_verdict(bad):
    with pytest.raises(AdapterError, match=r"overflow.*float32"):
        make_verdict(POLICY, [bad, 0.0], OperatingPoint(), "d")


def test_wrong_number_of_logits():
    with pytest.raises(AdapterError, match=r"'refunds'.*3 label logits for 2 labels"):
        make_verdict(POLICY, [0.0, 1.0, 2.0], OperatingPoint(), "d")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("temperature", bad) for bad in (0.0, -1.0, math.nan, math.inf)),
        *(("threshold", bad) for bad in (-0.1, math.nan, math.inf)),
        *(("bias", bad) for bad in (math.nan, math.inf, 100.1)),
    ],
)
def test_an_operating_point_that_is_none(field, bad):
    with pytest.raises(ConfigError, match=field):
        OperatingPoint(**{field: bad})


def test_one_policy_that_is_violated_is_enough():
    fine, broken = (
        Verdict(name, label, chance, 0.5, "d", {})
        for name, label, chance in (("a", "ok", 0.4), ("b", "violation", 0.5))
    )
    assert [Verdicts("c", found, 3).violated for found in ((fine,), (fine, broken), (broken, fine), ())] == [
        False, True, True, False
    ]  # fmt: skip
