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


@pytest.mark.parametrize(
    ("policy", "logits", "point", "label"),
    [
        (POLICY, [math.log(3), 0.0], (1.0, 0.75), "violation"),
        (POLICY, [math.log(3), 0.0], (1.0, 0.76), "ok"),  # its probability is 0.75
        (POLICY, [2 * math.log(3), 0.0], (2.0, 0.76), "ok"),  # tempered, so is this one's
        (TERNARY, [1.0, 0.2, 0.9], (1.0, 0.99), "warm"),  # the best other label
        (POLICY, [1e4, -1e4], (1.0, math.nextafter(1.0, 2.0)), "ok"),
    ],
)
def test_the_threshold_decides_and_not_the_argmax(policy, logits, point, label):
    assert make_verdict(policy, logits, OperatingPoint(*point), "d").label == label


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
    with pytest.raises(AdapterError, match=r"overflow.*float32"):
        make_verdict(POLICY, window, OperatingPoint(), "d")


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
