"""Compute an evaluation from predictions; format it as table rows; write and read ``evaluation.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from alora.atomic import write_json
from alora.config.schema import EvaluationSettings
from alora.data.findings import Finding
from alora.errors import RunError
from alora.evaluation.doubts import doubts
from alora.evaluation.metrics import compute_metrics
from alora.evaluation.paired import worth_samples
from alora.evaluation.predict import Predictions
from alora.evaluation.records import FIGURES, Estimate, Evaluation, Metrics
from alora.evaluation.resampling import Flags, Floats
from alora.received import DAMAGED, decode, refused, require_sealed, require_version
from alora.text import content_digest, read_json
from alora.verdict import OperatingPoint

_REMEDY = "run `alora evaluate` again"
HEADINGS = ("policy", "method", "rows", "AUROC", "AUPRC", "F1", "precision", "recall", "R@1%FPR", "R@5%FPR", "ECE")
_TITLES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "recall_at_1_fpr": "recall at 1 % FPR",
    "recall_at_5_fpr": "recall at 5 % FPR",
    "ece": "ECE",
}
_COLUMNS = ("auroc", "auprc", "f1", "precision", "recall", "recall_at_1_fpr", "recall_at_5_fpr", "ece")


def evaluate(
    predictions: Predictions,
    operating_point: OperatingPoint,
    settings: EvaluationSettings,
    *,
    method: str,
    split: str = "test",
    adapter_digest: str | None = None,
    seed: int = 0,
    rules: Mapping[str, float] | None = None,
    trained_on: int = 0,
) -> Evaluation:
    """Figures of ``predictions`` at an operating point that was fitted on other rows."""
    positive_N, chance_N = predictions.positive_N, predictions.probability_NL(operating_point)[:, 0]
    metrics = compute_metrics(positive_N, chance_N, operating_point.threshold, settings.bootstrap, seed)
    confusion_LL = np.zeros((len(predictions.policy.labels),) * 2, dtype=np.int64)
    np.add.at(confusion_LL, (predictions.label_ids_N, predictions.verdicts_N(operating_point)), 1)
    return Evaluation(
        policy=predictions.policy.id,
        method=method,
        split=split,
        metrics=metrics,
        operating_point=operating_point,
        adapter_digest=adapter_digest,
        label_counts=predictions.label_counts,
        truncated=predictions.truncated,
        confusion=tuple(map(tuple, confusion_LL.tolist())),
        rules=rules or {},
        trained_on=trained_on,
        regret=_regret(positive_N, chance_N, operating_point),
    )


def _regret(positive_N: Flags, probability_N: Floats, point: OperatingPoint) -> float | None:
    """What F1 or cost would lose at the worse end of the threshold's interval; None of a rate, or without interval."""
    if point.target not in ("f1", "cost") or point.threshold_low is None or point.threshold_high is None:
        return None
    own, *ends = (
        float(worth_samples(positive_N, probability_N >= threshold, point.costs, np.ones((1, len(positive_N))))[0])
        for threshold in (point.threshold, point.threshold_low, point.threshold_high)
    )
    return max(0.0, own - min(ends))


def table_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Cells under :data:`HEADINGS`, one row per evaluation; AUROC with its interval."""
    return [
        [
            item.policy,
            item.method,
            f"{item.metrics.rows} ({item.metrics.positives}+)",
            *(estimate_cell(item.metrics.figures[name], with_interval=name == "auroc") for name in _COLUMNS),
        ]
        for item in evaluations
    ]


def figure_rows(metrics: Metrics) -> list[list[str]]:
    """One row per figure of one evaluation, with its 95 % interval."""
    return [[_TITLES.get(name, name), estimate_cell(metrics.figures[name], with_interval=True)] for name in FIGURES]


def describe_operating_point(point: OperatingPoint) -> str:
    """One sentence on where the verdict turns positive and what that was chosen for."""
    if point.target == "none":
        return "uncalibrated: temperature 1, threshold 0.5"
    goal = {"fpr": "false positive rate at most", "recall": "recall at least"}.get(point.target, "best F1")
    if point.target_value is not None:
        goal += f" {point.target_value:g}"
    if point.costs is not None:
        goal = f"lowest cost, {point.costs[0]:g} a false positive and {point.costs[1]:g} a false negative,"
    where = f", fitted in {point.dtype}, scorer {point.engine}" if point.dtype and point.engine else ""
    text = f"threshold {point.threshold:.4f}"
    if point.threshold_low is not None and point.threshold_high is not None:
        text += f" (95 % interval {point.threshold_low:.4f} to {point.threshold_high:.4f})"
    fitted = f"temperature {point.temperature:.3f}, bias {point.bias:.3f}"
    return f"{text}, {fitted}: {goal} on {point.rows} held-out rows{where}"


def write_evaluations(file: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write ``evaluation.json`` whole or not at all; RunError when it cannot be written."""
    findings = [asdict(finding) for finding in doubts(evaluations)]
    content = {"schema_version": 1, "evaluations": [item.as_dict() for item in evaluations], "findings": findings}
    try:
        write_json(file, content | {"sha256": content_digest(content)})
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}; give a writable output=") from error


def read_evaluations(file: Path) -> list[Evaluation]:
    """Read ``evaluation.json`` back; RunError when it is missing, damaged, changed or of another version of alora."""
    content = read_json(file, RunError, _REMEDY)
    require_version(content, file, RunError, _REMEDY, "schema_version", 1)
    require_sealed(content, file, RunError, _REMEDY)
    try:
        decode(tuple[Finding, ...], content.get("findings", []), "findings")
        return list(decode(tuple[Evaluation, ...], content.get("evaluations"), "evaluations"))
    except TypeError as error:
        raise refused(RunError, DAMAGED, f"{file} is damaged ({error}); {_REMEDY}") from error


def estimate_cell(estimate: Estimate, with_interval: bool) -> str:
    """An estimate as a table shows it."""
    if estimate.value is None:
        return "n/a"
    if not with_interval or estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
