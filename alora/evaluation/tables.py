"""Compute an evaluation from predictions; format it as table rows; write and read ``evaluation.json``, and write
every row's probability into ``predictions.parquet``."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alora.atomic import write_json, write_pieces
from alora.config.schema import EvaluationSettings
from alora.data.conversation import LabelledConversation
from alora.data.findings import Finding
from alora.errors import RunError
from alora.evaluation.doubts import doubts
from alora.evaluation.metrics import Flags, Floats, compute_metrics
from alora.evaluation.paired import worth_samples
from alora.evaluation.predict import Predictions
from alora.evaluation.records import FIGURES, Estimate, Evaluation, Metrics
from alora.policy import Policy
from alora.received import DAMAGED, decode, refused, require_sealed, require_version, sealed
from alora.text import read_json
from alora.training.layout import MARK, PREDICTED
from alora.verdict import OperatingPoint

_REMEDY = "run `alora evaluate` again"
COLUMNS = {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1", "precision": "precision", "recall": "recall",
           "recall_at_1_fpr": "R@1%FPR", "recall_at_5_fpr": "R@5%FPR", "ece": "ECE"}  # fmt: skip
HEADINGS = ("policy", "method", "rows", *COLUMNS.values())
_TITLES = COLUMNS | {"recall_at_1_fpr": "recall at 1 % FPR", "recall_at_5_fpr": "recall at 5 % FPR",
                     "balanced_accuracy": "balanced accuracy"}  # fmt: skip


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
            *(estimate_cell(item.metrics.figures[name], with_interval=name == "auroc") for name in COLUMNS),
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
        write_json(file, sealed(content))
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


@dataclass(frozen=True)
class Scored:
    """A method's figures, and its predictions by split: where it was calibrated, where it was measured."""

    evaluation: Evaluation
    predictions: Mapping[str, Predictions]

    def probability_NL(self, split: str) -> Floats:
        return self.predictions[split].probability_NL(self.evaluation.operating_point)

    def verdicts_N(self, split: str) -> NDArray[np.int64]:
        return self.predictions[split].verdicts_N(self.evaluation.operating_point)


@dataclass(frozen=True)
class Judged:
    """A policy's methods, its adapter first, and the rows that they were asked about, by split."""

    policy: Policy
    methods: Sequence[Scored]
    rows: Mapping[str, Sequence[LabelledConversation]]

    @property
    def evaluations(self) -> list[Evaluation]:
        return [method.evaluation for method in self.methods]


def write_predictions(file: Path, judged: Sequence[Judged]) -> None:
    """Write a line for each policy, split, method and row: calibrated probabilities, and no text of a conversation."""
    lines = [
        line
        for of_policy in judged
        for method in of_policy.methods
        for split in method.predictions
        for line in _lines(of_policy, method, split)
    ]
    table = pa.Table.from_pylist(lines).replace_schema_metadata({MARK: PREDICTED})
    content = io.BytesIO()
    pq.write_table(table, content)
    write_pieces(file, [content.getvalue()])


def _lines(judged: Judged, method: Scored, split: str) -> list[dict[str, Any]]:
    labels, predictions = judged.policy.labels, method.predictions[split]
    return [
        {
            "policy": judged.policy.id,
            "split": split,
            "method": method.evaluation.method,
            "id": row.conversation.id,
            "where": row.where,
            "label": labels[label],
            "verdict": labels[verdict],
            "probability": probability_L[0],
            "labels": list(labels),
            "probabilities": probability_L,
        }
        for row, label, verdict, probability_L in zip(
            judged.rows[split],
            predictions.label_ids_N.tolist(),
            method.verdicts_N(split).tolist(),
            method.probability_NL(split).tolist(),
            strict=True,
        )
    ]
