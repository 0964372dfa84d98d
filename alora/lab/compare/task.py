"""What all methods share (policies, rows, base and prompt settings), and their scores: one per row, by the row's id,
and no text of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from alora.config.schema import ARMS, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.messages import digest
from alora.data.splits import Splits, data_settings, read_splits
from alora.errors import AloraError, ConfigError, DataError, LeftOut, RunError
from alora.evaluation.metrics import Flags, Floats
from alora.evaluation.predict import Predictions, held_out_predictions
from alora.policy import Policy, load_policies
from alora.received import read_record

if TYPE_CHECKING:
    from alora.base.load import LoadedBase
    from alora.prefix.store import PrefixStore
    from alora.prompt.render import Renderer

TRAINED = ("alora", "alora_cleaned", "lora")  # on the base, all policies together
UNTRAINED = ("prompt", "judge")  # methods
SCHEMA_VERSION = 1
Rows = Sequence[LabelledConversation]


@dataclass(frozen=True)
class MethodRun:
    """One method's run over all policies; ``seed`` and ``rank`` are None where a method has none."""

    arm: str
    seed: int | None = None
    rank: int | None = None

    @property
    def name(self) -> str:
        rank = "" if self.rank is None else f"-rank{self.rank}"
        return f"{self.arm}{rank}" + ("" if self.seed is None else f"-seed{self.seed}")


@dataclass(frozen=True)
class Task:
    """The methods see these rows alone: training rows to learn from, validation rows to stop and calibrate by, test
    rows to be compared on."""

    recipe: Recipe
    policies: tuple[Policy, ...]
    splits: Splits
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_id(self) -> dict[str, Policy]:
        return {policy.id: policy for policy in self.policies}

    def without(self, failed: Mapping[str, AloraError]) -> Task:
        """The task of the other policies; AllFailed where there is none, or the reason itself of a single one."""
        LeftOut(failed).require_some(self.by_id)
        going = tuple(policy for policy in self.policies if policy.id not in failed)
        return replace(self, policies=going, left_out={**self.left_out, **{n: str(e) for n, e in failed.items()}})

    def digests(self, base: LoadedBase) -> dict[str, str]:
        """What must not have changed when a comparison resumes."""
        weights = {f"base {name}": value for name, value in base.fingerprint.as_dict().items()}
        ids = {
            f"{name} ids": digest(repr([row.conversation.id for row in rows]))
            for name, rows in (("validation", self.splits.validation), ("test", self.splits.test))
        }  # scores are kept by them
        return self.splits.digests(self.policies) | ids | weights


@dataclass(frozen=True)
class Workbench:
    """A task with its base in memory."""

    task: Task
    base: LoadedBase
    renderer: Renderer
    store: PrefixStore | None = None  # prefix KV, the same for every method that leaves the base alone


def read_task(recipe: Recipe) -> Task:
    """Read policies and rows; at most ``compare.rows`` labelled rows of each policy, the same for every method."""
    if recipe.data.test is None:
        raise ConfigError("alora compare measures on held-out rows; add data.test=FILE.jsonl")
    policies = load_policies(recipe.policy, recipe.policies)
    splits, left_out = read_splits(data_settings(recipe), policies, most=recipe.compare.rows)
    for policy in policies:
        labels = {row.labels[policy.id] for row in splits.test if policy.id in row.labels}
        if policy.positive not in labels or len(labels) < 2:
            reason = DataError(f"the test rows of policy {policy.id!r} do not hold both its positive label and another")
            left_out.setdefault(policy.id, reason)
    return Task(recipe, tuple(policies), replace(splits, test=tuple(_distinct(splits.test)))).without(left_out)


def _distinct(rows: Sequence[LabelledConversation]) -> Iterator[LabelledConversation]:
    """``rows`` with unique ids, by which the methods' scores are paired; a row without an id is named by its file and
    line, which two files of one name share."""
    taken: set[str] = set()
    for row in rows:
        name, number = row.conversation.id, 1
        while name in taken:
            number += 1
            name = f"{row.conversation.id}#{number}"
        taken.add(name)
        yield replace(row, conversation=replace(row.conversation, id=name))


def method_runs(recipe: Recipe) -> list[MethodRun]:
    """Every run that the recipe asks for: the cheap methods first, then seed by seed, so that a first table is early. A
    judge is asked only where ``judge.url`` is given."""
    settings = recipe.compare
    arms = list(dict.fromkeys([*settings.arms, *(["judge"] if recipe.judge.url is not None else [])]))
    runs = [MethodRun(arm) for arm in reversed(ARMS) if arm in arms and arm not in (*TRAINED, "encoder")]
    for seed in settings.seeds:
        runs += [MethodRun("encoder", seed)] if "encoder" in arms else []
        for rank in settings.ranks or [recipe.adapter.rank]:
            runs += [MethodRun(arm, seed, rank) for arm in TRAINED if arm in arms]
    return runs


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
