"""Figures of a comparison, from raw scores made by hand."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from alora.config.schema import EvaluationSettings
from alora.evaluation.calibration import fit_operating_point, positive_probability
from alora.evaluation.paired import holm, paired_auroc
from alora.lab.compare.figures import compare
from alora.lab.compare.task import RowScores, Scores

QUIET = EvaluationSettings(bootstrap=20)


def calibrated(arm: str, policy: str, seed: int, rows: int = 150) -> Scores:
    """Labels drawn with the very probability that the logits give: no calibration error but chance's."""

    def drawn(part: int) -> RowScores:
        generator = np.random.default_rng([seed, part])
        chance_N = generator.uniform(0.05, 0.95, rows)
        labels_N = (generator.uniform(size=rows) > chance_N).astype(np.int64)
        logits_NL = np.stack([np.log(chance_N), np.log(1 - chance_N)], axis=1)
        return RowScores.of(tuple(f"{part}-{n}" for n in range(rows)), labels_N, logits_NL, rows)

    return Scores(arm, policy, seed, 4, drawn(0), drawn(1))


def taken(rows: RowScores, places: np.ndarray) -> RowScores:
    ids = tuple(rows.ids[place] for place in places)
    return RowScores.of(ids, rows.label_ids_N[places], rows.logits_NL[places], rows.asked)


def with_logits(rows: RowScores, logits_NL: np.ndarray) -> RowScores:
    return RowScores.of(rows.ids, rows.label_ids_N, logits_NL, rows.asked)


def blurred(scores: Scores, arm: str, rank: int | None, noise: float, seed: int = 9) -> Scores:
    """The same rows by a method that knows less."""
    generator = np.random.default_rng(seed)
    parts = {
        name: with_logits(rows, rows.logits_NL + generator.normal(0, noise, rows.logits_NL.shape))
        for name, rows in (("validation", scores.validation), ("test", scores.test))
    }
    return replace(scores, arm=arm, rank=rank, **parts)


def test_rows_are_paired_by_their_ids():
    """The other method answers two rows of three, and in an order of its own."""
    first = calibrated("alora", "red", 3)
    whole = blurred(first, "judge", None, 2.0)
    kept = np.random.default_rng(1).permutation(150)[:100]
    second = replace(whole, test=taken(whole.test, kept))
    found = compare([first, second], QUIET, main_rank=4)
    gap = found.gaps[0]
    positive_N = first.test.positive_N[kept]
    margins = [scores.test.logits_NL[kept] @ np.array([1.0, -1.0]) for scores in (first, whole)]
    areas = [roc_auc_score(positive_N, margin_N) for margin_N in margins]
    assert gap.value == pytest.approx(areas[0] - areas[1], abs=1e-12)
    assert gap.p_delong == pytest.approx(paired_auroc(positive_N, *margins, resamples=0).p_delong)
    assert found.of(("judge", None), "red").unanswered == pytest.approx(1 / 3)
    assert found.of(("judge", None), None).unanswered == pytest.approx(1 / 3)


def test_p_is_adjusted_for_the_policies_of_a_pair():
    ours = [calibrated("alora", policy, seed) for seed, policy in enumerate(("blue", "green", "red"))]
    theirs = [blurred(scores, "lora", 4, noise) for scores, noise in zip(ours, (0.4, 0.7, 1.2), strict=True)]
    found = compare([*ours, *theirs], QUIET, main_rank=4)
    gaps = found.gaps
    told = [gap.p_delong for gap in gaps[:3]]
    assert [gap.p_holm for gap in gaps[:3]] == holm(told)
    assert max(told) < 1
    assert all(gap.p_holm > gap.p_delong for gap in gaps[:3] if gap.p_delong < max(told))
    assert gaps[3].value == pytest.approx(np.mean([gap.value for gap in gaps[:3]]))
    each = [found.of(("lora", 4), policy).figures["f1"].value for policy in ("blue", "green", "red")]
    assert found.of(("lora", 4), None).figures["f1"].value == pytest.approx(np.mean(each))


def test_seeds_count_by_their_mean_each_at_a_point_of_its_own_validation_rows():
    runs = [blurred(calibrated("lora", "red", 3), "lora", 4, noise, seed=5) for noise in (0.1, 1.0, 4.0)]
    (told, _) = compare(runs, QUIET, main_rank=4).methods
    points = [fit_operating_point(run.validation.logits_NL, run.validation.label_ids_N, QUIET) for run in runs]
    assert list(told.operating_points) == points
    right = [
        np.mean(
            (positive_probability(run.test.logits_NL, point.temperature, point.bias) >= point.threshold)
            == run.test.positive_N
        )
        for run, point in zip(runs, points, strict=True)
    ]
    assert told.figures["accuracy"].value == pytest.approx(np.mean(right))
    assert told.spread["accuracy"] == pytest.approx(np.std(right, ddof=1))


def test_test_rows_of_one_class_cost_their_policy_alone():
    sound, one_class = (calibrated("alora", policy, 3) for policy in ("blue", "red"))
    test = replace(one_class.test, label_ids=(1,) * len(one_class.test.ids))
    found = compare([sound, replace(one_class, test=test)], QUIET, main_rank=4)
    assert [method.policy for method in found.methods] == ["blue", None]
    assert "do not hold both" in found.left_out["alora-rank4"]["red"]


def useless(rows: RowScores, how: str) -> RowScores:
    """``rows`` of which only those of one label, or none, were answered, or with a logit that is no number."""
    if how == "nan":
        return with_logits(rows, np.where(np.arange(len(rows.ids))[:, None] == 0, np.nan, rows.logits_NL))
    return taken(rows, np.flatnonzero(rows.positive_N) if how == "one label" else np.arange(0))


@pytest.mark.parametrize(
    ("part", "how", "words"),
    [
        ("validation", "one label", r"of 150 validation and 150 of 150 test rows have an answer.*one class"),
        ("validation", "none", "0 of 150 validation.*no rows to calibrate"),
        ("test", "none", "0 of 150 test.*0 test rows"),
        ("test", "one label", "of 150 test.*test rows"),
        ("validation", "nan", "^label logits of 1 of 150 rows are not finite"),
        ("test", "nan", "^label logits of 1 of 150 rows are not finite"),
    ],
)
def test_a_judge_without_use_is_left_out_of_that_policy_with_the_reason(part, how, words):
    ours = [calibrated("alora", policy, 3) for policy in ("red", "blue")]
    red, blue = (blurred(scores, "judge", None, 1.0) for scores in ours)
    red = replace(red, **{part: useless(getattr(red, part), how)})
    found = compare([*ours, red, blue], QUIET, main_rank=4)
    assert [item.policy for item in found.methods if item.arm == "judge"] == ["blue", None]
    assert {gap.policy for gap in found.gaps} == {"blue", None}
    assert re.search(words, found.left_out["judge"]["red"])


def test_each_rank_of_lora_meets_alora_of_the_same_rank_and_all_else_the_main_one():
    ours = [replace(calibrated("alora", "red", 3), rank=rank) for rank in (4, 16)]
    others = [blurred(ours[0], arm, rank, 1.0) for arm, rank in (("lora", 4), ("lora", 16), ("probe", None))]
    pairs = {(gap.first[1], gap.second) for gap in compare([*ours, *others], QUIET, main_rank=16).gaps}
    assert pairs == {(4, ("lora", 4)), (16, ("lora", 16)), (16, ("probe", None))}
