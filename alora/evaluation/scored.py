"""Every row's probability: the predictions behind the figures, and ``predictions.parquet`` that keeps them."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alora.atomic import write_pieces
from alora.data.conversation import LabelledConversation
from alora.evaluation.predict import Predictions
from alora.evaluation.records import Evaluation
from alora.evaluation.resampling import Floats
from alora.policy import Policy
from alora.training.layout import MARK, PREDICTED


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
