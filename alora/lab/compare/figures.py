"""Scores → figures and tests: everything here is computed again from ``compare.json``'s raw scores alone.

Every operating point is fitted on validation rows, for each method and seed. Intervals resample the test rows, the
same resample for all seeds of a method; the spread over seeds is shown next to them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alora.config.schema import EvaluationSettings
from alora.errors import DataError
from alora.evaluation.calibration import fit_operating_point, positive_probability
from alora.evaluation.metrics import COVERAGE, Floats, bootstrap, estimates
from alora.evaluation.paired import Difference, holm, paired_auroc, two_sided
from alora.evaluation.records import FIGURES, Estimate
from alora.lab.compare.task import Scores
from alora.verdict import OperatingPoint

Method = tuple[str, int | None]  # its name in compare.arms, and its rank


@dataclass(frozen=True)
class MethodFigures:
    """One method on one policy, or over the battery (``policy`` is None): mean over seeds, interval over rows.
    ``spread`` is the standard deviation over seeds, None for a single run; ``unanswered`` the share of test rows
    without an answer, which only a judge leaves."""

    arm: str
    rank: int | None
    policy: str | None
    rows: int
    positives: int
    runs: int
    figures: Mapping[str, Estimate]
    spread: Mapping[str, float | None]
    operating_points: tuple[OperatingPoint, ...] = ()
    unanswered: float = 0.0


@dataclass(frozen=True)
class Gap:
    """AUROC of the first method minus the second's on the rows both answered; over the battery, the mean gap.
    ``p_holm`` adjusts DeLong's p for the policies of the same pair of methods."""

    first: Method
    second: Method
    policy: str | None
    value: float
    low: float
    high: float
    p_bootstrap: float
    p_delong: float | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All figures and tests of a comparison; ``left_out`` has, per method and policy without figures, the reason."""

    methods: tuple[MethodFigures, ...]
    gaps: tuple[Gap, ...]
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, method: Method, policy: str | None) -> MethodFigures | None:
        return next((m for m in self.methods if (m.arm, m.rank) == method and m.policy == policy), None)


def compare(scores: Sequence[Scores], settings: EvaluationSettings, main_rank: int, seed: int = 0) -> Comparison:
    """Figures of every method, and the gap of aLoRA at ``main_rank`` to every other method, and to LoRA at every rank.
    Scores that cannot be used (validation or test rows of one class, logits that are not finite) leave out that policy
    for that method alone."""
    groups: dict[Method, dict[str, list[Scores]]] = {}
    for item in scores:
        groups.setdefault((item.arm, item.rank), {}).setdefault(item.policy, []).append(item)
    methods, chances = list[MethodFigures](), dict[tuple[Method, str], Floats]()
    left_out: dict[str, dict[str, str]] = {}
    for method, policies in groups.items():
        parts = []
        for index, (policy, runs) in enumerate(sorted(policies.items())):
            try:
                figures, samples_SF, chances_KN = _one_policy(method, policy, runs, settings, seed + index)
            except DataError as error:
                name = method[0] if method[1] is None else f"{method[0]}-rank{method[1]}"
                left_out.setdefault(name, {})[policy] = _reason(runs, error)
                continue
            chances[method, policy] = chances_KN
            parts.append((figures, samples_SF))
        methods += [figures for figures, _ in parts]
        if parts:
            methods.append(_over_battery(method, parts))
    gaps = [gap for pair in _pairs(groups, main_rank) for gap in _gaps(pair, groups, chances, settings, seed)]
    return Comparison(tuple(methods), tuple(gaps), left_out)


def _reason(runs: Sequence[Scores], error: DataError) -> str:
    parts = {"validation": runs[0].validation, "test": runs[0].test}
    if all(len(rows.ids) == rows.asked for rows in parts.values()):
        return str(error)
    shares = " and ".join(f"{len(rows.ids)} of {rows.asked} {name}" for name, rows in parts.items())
    return f"{shares} rows have an answer: {error}"


def _one_policy(
    method: Method, policy: str, runs: Sequence[Scores], settings: EvaluationSettings, seed: int
) -> tuple[MethodFigures, Floats, Floats]:
    """The method's figures, their resampled means over the runs, and the runs' probabilities."""
    test = runs[0].test
    if not 0 < test.positive_N.sum() < len(test.ids):
        raise DataError(f"the {len(test.ids)} test rows do not hold both the positive label and another")
    points, chances, point_figures = [], [], []
    samples_SF = np.zeros((settings.bootstrap, len(FIGURES)))
    for run in runs:
        point = fit_operating_point(run.validation.logits_NL, run.validation.label_ids_N, settings, seed)
        chance_N = positive_probability(run.test.logits_NL, point.temperature, point.bias)
        point_F, run_SF = bootstrap(run.test.positive_N, chance_N, point.threshold, settings.bootstrap, seed)
        points.append(point)
        chances.append(chance_N)
        point_figures.append(point_F)
        samples_SF += run_SF
    point_KF, samples_SF = np.array(point_figures), samples_SF / len(runs)  # once: nine ninths are more than 1
    spread: dict[str, float | None] = dict.fromkeys(FIGURES)
    if len(runs) > 1:
        spread |= dict(zip(FIGURES, point_KF.std(axis=0, ddof=1).tolist(), strict=True))
    figures = MethodFigures(
        *method,
        policy=policy,
        rows=len(test.ids),
        positives=int(test.positive_N.sum()),
        runs=len(runs),
        figures=estimates(point_KF.mean(axis=0), samples_SF),
        spread=spread,
        operating_points=tuple(points),
        unanswered=1 - len(test.ids) / max(1, test.asked),
    )
    return figures, samples_SF, np.array(chances)


def _over_battery(method: Method, parts: Sequence[tuple[MethodFigures, Floats]]) -> MethodFigures:
    """The mean over policies, each of the same weight; rows of different policies are resampled apart."""
    each = [figures for figures, _ in parts]
    figures_MF = np.array([[item.figures[name].value for name in FIGURES] for item in each], dtype=np.float64)
    return MethodFigures(
        *method,
        policy=None,
        rows=sum(item.rows for item in each),
        positives=sum(item.positives for item in each),
        runs=min(item.runs for item in each),
        figures=estimates(figures_MF.mean(axis=0), np.mean([samples for _, samples in parts], axis=0)),
        spread=dict.fromkeys(FIGURES),
        unanswered=float(np.mean([item.unanswered for item in each])),
    )


def _pairs(methods: Iterable[Method], main_rank: int) -> list[tuple[Method, Method]]:
    known = list(methods)
    pairs: list[tuple[Method, Method]] = [(("alora", main_rank if one[1] is None else one[1]), one) for one in known]
    return [(first, second) for first, second in pairs if second[0] != "alora" and first in known]


def _gaps(
    pair: tuple[Method, Method],
    groups: Mapping[Method, Mapping[str, Sequence[Scores]]],
    chances: Mapping[tuple[Method, str], Floats],
    settings: EvaluationSettings,
    seed: int,
) -> list[Gap]:
    shared = sorted(p for p in groups[pair[0]] if all((method, p) in chances for method in pair))
    differences: dict[str, Difference] = {}
    for index, policy in enumerate(shared):
        first, second = (groups[method][policy][0].test for method in pair)
        at = {name: index for index, name in enumerate(second.ids)}
        first_rows = [index for index, name in enumerate(first.ids) if name in at]  # that both answered
        second_rows = [at[first.ids[index]] for index in first_rows]
        if 0 < first.positive_N[first_rows].sum() < len(first_rows):
            scores = (chances[pair[0], policy][:, first_rows], chances[pair[1], policy][:, second_rows])
            differences[policy] = paired_auroc(first.positive_N[first_rows], *scores, settings.bootstrap, seed + index)
    adjusted = holm([difference.p_delong for difference in differences.values()])
    gaps = [
        Gap(*pair, policy, d.value, d.low, d.high, d.p_bootstrap, d.p_delong, p)
        for (policy, d), p in zip(differences.items(), adjusted, strict=True)
    ]
    if gaps:
        size = min(len(difference.samples_S) for difference in differences.values())
        mean_S = np.mean([difference.samples_S[:size] for difference in differences.values()], axis=0)
        low, high = np.percentile(mean_S, COVERAGE) if size else (np.nan, np.nan)
        value = float(np.mean([gap.value for gap in gaps]))
        gaps.append(Gap(*pair, None, value, float(low), float(high), two_sided(mean_S)))
    return gaps
