"""What a figure shows is what was measured."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from alora.evaluation.metrics import roc_points
from notebooks.plots import (
    Interval,
    difference_figure,
    gap_figure,
    roc_figure,
)


@pytest.fixture
def scored():
    rng = np.random.default_rng(0)
    positive_N = rng.random(300) < 0.4
    score_N = np.round(np.clip(0.3 * positive_N + 0.7 * rng.random(300), 0, 1), 2)  # rounded: many ties
    return positive_N, score_N


def test_roc_points_are_scikit_learns(scored):
    alarms, hits = roc_points(*scored)
    expected_alarms, expected_hits, _ = roc_curve(*scored, drop_intermediate=False)
    np.testing.assert_allclose(alarms, expected_alarms, rtol=0, atol=1e-15)
    np.testing.assert_allclose(hits, expected_hits, rtol=0, atol=1e-15)
    assert np.trapezoid(hits, alarms) == pytest.approx(roc_auc_score(*scored), abs=1e-12)


def test_the_lines_drawn_are_the_points(scored):
    figure = roc_figure({"a": scored, "b": (scored[0], 1 - scored[1])}, "title")
    whole = figure.axes[0]
    drawn = {str(line.get_label()): np.column_stack(line.get_data()) for line in whole.lines}
    np.testing.assert_array_equal(drawn["a"], np.column_stack(roc_points(*scored)))
    assert not np.array_equal(drawn["a"], drawn["b"])


def test_a_gap_is_drawn_at_its_value_between_its_bounds():
    figure = gap_figure({"one": Interval(0.02, -0.01, 0.05), "two": Interval(-0.1, -0.2, 0.0)}, margin=0.01)
    axes = figure.axes[0]
    spans = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert [-0.01, 0.05] in spans
    assert [-0.2, 0.0] in spans
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]


@pytest.mark.parametrize("panels", [1, 3, 4, 7, 8])
def test_one_changed_element_of_many_is_seen(panels):
    quiet = {"layer 0 K": [0.0] * 9, "output": [0.0] * 9}
    touched = {"layer 0 K": [0.0] * 4 + [1 / 4096] + [0.0] * 4, "output": [1.0] * 9}
    maps = {f"panel {i}": quiet for i in range(panels - 1)} | {"touched": touched}
    figure = difference_figure(maps, activation=5)
    shown = {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images}
    assert len(shown) == panels
    assert shown["touched"][0, 4] > 0.25
    assert shown["touched"][0].sum() == shown["touched"][0, 4]
    assert shown["touched"][1].tolist() == [1.0] * 9
    assert all(not shown[f"panel {i}"].any() for i in range(panels - 1))
