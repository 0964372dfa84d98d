"""Figures of a comparison, from raw scores made by hand."""

import numpy as np

from alora.comparison.figures import Comparison, compare
from alora.comparison.scores import RowScores, Scores
from alora.config.schema import EvaluationSettings
from alora.evaluation import metrics


def calibrated(arm: str, policy: str, seed: int, rows: int = 150) -> Scores:
    """Labels drawn with the very probability that the logits give: no calibration error but chance's."""

    def drawn(part: int) -> RowScores:
        generator = np.random.default_rng([seed, part])
        chance_N = generator.uniform(0.05, 0.95, rows)
        labels_N = (generator.uniform(size=rows) > chance_N).astype(np.int64)
        logits_NL = np.stack([np.log(chance_N), np.log(1 - chance_N)], axis=1)
        return RowScores(tuple(f"{part}-{n}" for n in range(rows)), labels_N, logits_NL, rows)

    return Scores(arm, policy, seed, 4, drawn(0), drawn(1))


def of_two_policies() -> Comparison:
    scores = [calibrated("alora", policy, seed) for policy in ("red", "blue") for seed in (3, 4)]
    return compare(scores, EvaluationSettings(bootstrap=200), main_rank=4)


def test_every_interval_holds_its_value_where_resampling_is_biased_too(monkeypatch):
    """Rows that are drawn twice make bins look worse: of percentiles, the one of the calibration error misses it."""
    found = of_two_policies()
    assert [method.policy for method in found.methods] == ["blue", "red", None]
    for method in found.methods:
        for name, told in method.figures.items():
            assert told.low <= told.value <= told.high, (method.policy, name)
    monkeypatch.setattr(metrics, "_turned", lambda value, low, high: (low, high))
    assert any(m.figures["ece"].low > m.figures["ece"].value for m in of_two_policies().methods)
