"""What an evaluation's record may hold."""

import pytest

from alora.evaluation.records import FIGURES, Estimate, Evaluation, Metrics
from alora.verdict import OperatingPoint


@pytest.mark.parametrize("numbers", [(1e30,), (-0.1,), (0.5, -1.0), (0.5, 0.4, 1.1), (float("nan"),)])
def test_a_figure_is_a_share(numbers):
    with pytest.raises(ValueError, match="not 0 to 1"):
        Estimate(*numbers)


def test_a_figure_that_the_rows_do_not_define():
    assert Estimate(None) == Estimate(None, None, None)


METRICS = Metrics(5, 2, 0.5, {name: Estimate(0.5) for name in FIGURES})


def evaluation(**changes):
    counts = {"label_counts": {"bad": 2, "ok": 3}, **changes}
    return Evaluation("toy", "alora", "test", METRICS, OperatingPoint(), **counts)


@pytest.mark.parametrize(
    "confusion", [((2, 0),), ((2,), (3,)), ((3, 0), (0, 2)), ((3, -1), (0, 3)), ((2, 0, 0), (0, 3, 0))]
)
def test_a_confusion_counts_the_rows_of_each_label(confusion):
    assert evaluation(confusion=((2, 0), (1, 2))).macro_f1 == pytest.approx(0.8)
    with pytest.raises(ValueError, match="confusion"):
        evaluation(confusion=confusion)


@pytest.mark.parametrize("rules", [{"odd": 0.5}, {"ok": -0.1}, {"ok": 1.5}, {"ok": float("nan")}])
def test_rules_are_thresholds_of_its_labels(rules):
    assert evaluation(rules={"ok": 1.0}).rules == {"ok": 1.0}
    with pytest.raises(ValueError, match="rules"):
        evaluation(rules=rules)
