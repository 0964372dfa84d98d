"""One method's scores of one policy: one per row, by the row's id, and no text of a conversation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from alora.atomic import write_json
from alora.data.conversation import LabelledConversation
from alora.data.splits import Splits
from alora.errors import RunError
from alora.evaluation.predict import Predictions
from alora.evaluation.resampling import Flags, Floats
from alora.lab.compare.task import MethodRun
from alora.policy import Policy

SCHEMA_VERSION = 1
UNTRAINED = ("prompt", "judge")  # methods


@dataclass(frozen=True)
class RowScores:
    """Label logits of some rows, in their order. A row without an answer has no entry; ``asked`` counts it."""

    ids: tuple[str, ...]
    label_ids_N: NDArray[np.int64]
    logits_NL: Floats
    asked: int

    @property
    def positive_N(self) -> Flags:
        """Whether each row is of the policy's positive label."""
        return self.label_ids_N == 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_dict` reads it back, bit for bit."""
        return {
            "ids": list(self.ids),
            "label_ids": self.label_ids_N.tolist(),
            "logits": self.logits_NL.tolist(),
            "asked": self.asked,
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Read :meth:`as_dict` back; KeyError, TypeError or ValueError when it is something else."""
        ids = tuple(mapping["ids"])
        labels_N = np.array(mapping["label_ids"], dtype=np.int64)
        logits_NL = np.array(mapping["logits"], dtype=np.float64).reshape(len(ids), -1 if ids else 0)
        if len(labels_N) != len(ids):
            raise ValueError(f"{len(ids)} ids but {len(labels_N)} labels")
        return cls(ids, labels_N, logits_NL, int(mapping["asked"]))


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

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_dict` reads it back."""
        parts = {"facts": dict(self.facts), "validation": self.validation.as_dict(), "test": self.test.as_dict()}
        return {**vars(self), **parts}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Read :meth:`as_dict` back; KeyError, TypeError or ValueError when it is something else."""
        parts = {name: RowScores.from_dict(mapping[name]) for name in ("validation", "test")}
        return cls(**{**mapping, **parts, "facts": dict(mapping["facts"])})


def labelled_for(policy: Policy, rows: Sequence[LabelledConversation]) -> list[LabelledConversation]:
    """The rows that carry a label of ``policy``, in their order."""
    return [row for row in rows if policy.id in row.labels]


def row_scores(predictions: Predictions, rows: Sequence[LabelledConversation]) -> RowScores:
    """Predictions with the ids of their rows; ``rows`` are those that were predicted, or more."""
    ids = tuple(row.conversation.id for row in labelled_for(predictions.policy, rows))
    return RowScores(ids, predictions.label_ids_N, predictions.logits_NL, len(ids))


def scores_of(run: MethodRun, answered: Sequence[Predictions], splits: Splits, facts: Mapping[str, Any]) -> Scores:
    """One policy's scores, from its predictions on the validation rows and on the test rows."""
    known, asked = answered
    rows = row_scores(known, calibration_rows(splits, known.policy, run.arm)), row_scores(asked, splits.test)
    return Scores(run.arm, known.policy.id, run.seed, run.rank, *rows, facts=facts)


def calibration_rows(splits: Splits, policy: Policy, arm: str) -> list[LabelledConversation]:
    """The rows that a method's operating point is fitted on: a sample of them, where it learns from none."""
    return labelled_for(policy, splits.sample) if arm in UNTRAINED else splits.calibration(policy.id)


def write_scores(file: Path, scores: Scores) -> None:
    """Write one method's scores of one policy, whole or not at all."""
    write_json(file, {"schema_version": SCHEMA_VERSION, **scores.as_dict()})


def read_scores(file: Path) -> Scores:
    """Read :func:`write_scores` back."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if (version := content.pop("schema_version")) != SCHEMA_VERSION:
            raise ValueError(f"schema_version {version} is not {SCHEMA_VERSION}")
        return Scores.from_dict(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} holds no scores of this version ({type(error).__name__}: {error}); remove it and run again"
        ) from error
