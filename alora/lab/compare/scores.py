"""One method's scores of one policy: one per row, by the row's id, and no text of a conversation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from alora.data.conversation import LabelledConversation
from alora.data.splits import Splits
from alora.errors import RunError
from alora.evaluation.predict import Predictions, held_out_predictions
from alora.evaluation.resampling import Flags, Floats
from alora.lab.compare.task import MethodRun
from alora.policy import Policy
from alora.received import read_record

SCHEMA_VERSION = 1
UNTRAINED = ("prompt", "judge")  # methods
Rows = Sequence[LabelledConversation]


@dataclass(frozen=True)
class RowScores:
    """Label logits of some rows, in their order. A row without an answer has no entry; ``asked`` counts it."""

    ids: tuple[str, ...]
    label_ids: tuple[int, ...]
    logits: tuple[tuple[float, ...], ...]
    asked: int

    @classmethod
    def of(cls, ids: Sequence[str], label_ids_N: NDArray[np.int64], logits_NL: Floats, asked: int) -> Self:
        return cls(tuple(ids), tuple(label_ids_N.tolist()), tuple(map(tuple, logits_NL.tolist())), asked)

    @cached_property
    def label_ids_N(self) -> NDArray[np.int64]:
        return np.array(self.label_ids, dtype=np.int64)

    @cached_property
    def logits_NL(self) -> Floats:
        return np.array(self.logits, dtype=np.float64).reshape(len(self.ids), -1 if self.ids else 0)

    @property
    def positive_N(self) -> Flags:
        return self.label_ids_N == 0


@dataclass(frozen=True)
class Scores:
    """One method's scores of one policy. ``facts`` says how they came about: steps, learning rate, seconds, tokens."""

    arm: str
    policy: str
    seed: int | None
    rank: int | None
    validation: RowScores
    test: RowScores
    facts: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def labelled_for(policy: Policy, rows: Sequence[LabelledConversation]) -> list[LabelledConversation]:
    return [row for row in rows if policy.id in row.labels]


def row_scores(predictions: Predictions, rows: Sequence[LabelledConversation]) -> RowScores:
    """Predictions with the ids of their rows; ``rows`` are those that were predicted, or more."""
    ids = tuple(row.conversation.id for row in labelled_for(predictions.policy, rows))
    return RowScores.of(ids, predictions.label_ids_N, predictions.logits_NL, len(ids))


def scores_of(run: MethodRun, answered: Sequence[Predictions], splits: Splits, facts: Mapping[str, Any]) -> Scores:
    """One policy's scores, from its predictions on the validation rows and on the test rows."""
    known, asked = answered
    rows = row_scores(known, calibration_rows(splits, known.policy, run.arm)), row_scores(asked, splits.test)
    return Scores(run.arm, known.policy.id, run.seed, run.rank, *rows, facts=facts)


def held_out_answers(
    policy: Policy, splits: Splits, fit: Callable[[Rows], Callable[[Rows], Floats]]
) -> list[Predictions]:
    """Of a method that learns from rows (``fit`` returns what gives logits): its answer to each row to calibrate by,
    learnt from the others, and to the test rows, learnt from all training rows."""
    taught, known = labelled_for(policy, splits.train), splits.calibration(policy.id)
    asked, whole = labelled_for(policy, splits.test), fit(taught)
    known_NL = np.zeros((len(known), len(policy.labels)))
    folds_N = np.array([row.folds.get(policy.id, -1) for row in known])
    for fold in np.unique(folds_N):
        fitted = whole if fold == -1 else fit([row for row in taught if row.folds[policy.id] != fold])
        known_NL[folds_N == fold] = fitted([known[index] for index in np.flatnonzero(folds_N == fold)])
    return [held_out_predictions(policy, known, known_NL), held_out_predictions(policy, asked, whole(asked))]


def calibration_rows(splits: Splits, policy: Policy, arm: str) -> list[LabelledConversation]:
    """The rows that a method's operating point is fitted on: a sample of them, where it learns from none."""
    return labelled_for(policy, splits.sample) if arm in UNTRAINED else splits.calibration(policy.id)


def read_scores(file: Path) -> Scores:
    return read_record(Scores, file, RunError, "remove it and run again", schema_version=SCHEMA_VERSION)
