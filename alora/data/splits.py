"""The three splits of a run: training rows, validation rows (to stop and to calibrate by), test rows."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from alora.config.paths import POLICY_PLACE
from alora.config.schema import DataSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.findings import Findings
from alora.data.held_out import at_most, fold_rows, hold_out
from alora.data.labelled import none_labelled, read_labelled, read_multilabelled
from alora.data.messages import digest, text_digest
from alora.data.sources import Source, each, named
from alora.errors import ConfigError, DataError, LeftOut
from alora.policy import Policy

LEAST_ROWS = 2  # of two labels: below it there is nothing to learn, nor a bag of words to compare with


@dataclass(frozen=True)
class Splits:
    """Rows by use. ``test`` is empty when no test rows are given.

    A policy in folds has no validation rows: each of its training rows is held out by the fold that the row names.
    """

    train: tuple[LabelledConversation, ...]
    validation: tuple[LabelledConversation, ...]
    test: tuple[LabelledConversation, ...] = ()

    @cached_property
    def folded(self) -> frozenset[str]:
        """The policies whose training rows are in folds."""
        return frozenset(name for row in self.train for name in row.folds)

    def calibration(self, policy: str) -> list[LabelledConversation]:
        """The rows that the policy's operating point is fitted on: those held out by a fold, or the validation rows."""
        return [row for row in (self.train if policy in self.folded else self.validation) if policy in row.labels]

    @cached_property
    def sample(self) -> tuple[LabelledConversation, ...]:
        """The rows that methods without training are calibrated by, which one fold of each policy and the validation
        rows are enough for; each with the labels of those policies alone."""
        of_fold = [
            replace(row, labels={name: label for name, label in row.labels.items() if row.folds.get(name) == 0})
            for row in self.train
        ]
        return (*(row for row in of_fold if row.labels), *self.validation)

    def measured(self, policy: str) -> tuple[str, list[LabelledConversation]]:
        """The rows to measure a policy on, and what they are to it: test rows, or those that it is calibrated by."""
        if self.test:
            return "test", [row for row in self.test if policy in row.labels]
        return "out_of_fold" if policy in self.folded else "validation", self.calibration(policy)

    def counts(self, policy: Policy) -> dict[str, dict[str, int]]:
        """Rows of ``policy`` by split and label."""
        return {name: count_labels(rows, policy) for name, rows in self.parts.items()}

    def system_share(self, policy: Policy) -> float | None:
        """Of the policy's training rows, the share that has a system turn."""
        rows = [row for row in self.train if row.labels.get(policy.id) in policy.labels]
        having = sum(any(message.role == "system" for message in row.conversation.messages) for row in rows)
        return having / len(rows) if rows else None

    @property
    def parts(self) -> dict[str, tuple[LabelledConversation, ...]]:
        """The three splits by their names."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def digests(self, policies: Sequence[Policy]) -> dict[str, str]:
        """What must not have changed when a run resumes: the rows by digest, the policies by their text."""
        rows = {f"{name} rows": rows_digest(rows) for name, rows in self.parts.items()}
        return rows | {f"policy {policy.id}": repr(policy.as_dict()) for policy in policies}


def data_settings(recipe: Recipe) -> DataSettings:
    """A recipe's data settings, without folds where its training knows none: TRL trains one adapter at a time, and a
    conversation in windows is scored otherwise than it is trained on."""
    alone = recipe.training.engine == "trl" or recipe.prompt.truncation == "windows"
    return replace(recipe.data, folds=1) if alone else recipe.data


def read_splits(
    settings: DataSettings, policies: Sequence[Policy], notes: Counter[str] | None = None, most: int | None = None
) -> tuple[Splits, LeftOut]:
    """Every split that ``settings`` name, and the policies whose rows cannot be used, each with the reason. Where no
    validation rows are given, folds or a share of the training rows stand in for them.

    ``notes`` counts the values that were not read literally; at most ``most`` training rows of a policy are used.
    """
    if settings.train is None:
        raise ConfigError("no training rows: set data.train=FILE (JSON, CSV or Parquet) or data.train=hub:NAME")
    left_out, by_id = LeftOut(), {policy.id: policy for policy in policies}

    def read(use: str, weights: Sequence[float] = ()) -> list[LabelledConversation]:
        source = source_for(settings, use)
        if source is None:
            return []
        rows, unusable = read_shared_rows(source, settings, policies, weights, Findings(notes), use)
        if not rows and getattr(settings, use) is None:  # data.columns.split calls none so
            return []
        labelled = {name for row in rows for name in row.labels}
        for name in (name for name in by_id if name not in labelled):
            left_out.setdefault(name, unusable.get(name, none_labelled(source, len(rows), name)))
        left_out.require_some(by_id)
        return [row for row in rows if row.labels]

    train, validation = read("train", settings.weights), read("validation")
    train = train if most is None else at_most(train, policies, most)
    if settings.validation is None and not validation:
        train, validation = hold_out(fold_rows(train, settings.folds), settings.validation_share)
    splits = Splits(tuple(train), tuple(validation), tuple(read("test")))
    left_out.each([name for name in by_id if name not in left_out], lambda name: require_labels(splits, by_id[name]))
    left_out.require_some(by_id)
    return splits, left_out


def source_for(settings: DataSettings, use: str) -> Source | None:
    """The source of the rows to train on, to validate by or to test on: its own, or that of all with
    ``data.columns.split``."""
    own = getattr(settings, use)
    return settings.train if own is None and settings.columns.split is not None else own


def read_policy_rows(
    source: Source,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings | None = None,
    use: str | None = None,
) -> tuple[list[LabelledConversation], LeftOut]:
    """Unmerged rows of ``policies`` from one source or (``%policy%`` in its name) from one file for each, and the
    policies whose own file, or whose labels in a common source, cannot be used; they have no labels in the rows."""
    findings, by_id = Findings() if findings is None else findings, {policy.id: policy for policy in policies}
    if POLICY_PLACE in named(source):
        left_out, notes = LeftOut(), findings.notes  # what is wrong in one file is not the fault of the next

        def read(name: str) -> list[LabelledConversation]:
            return read_labelled(source_of(source, by_id[name]), settings, by_id[name], Findings(notes), use)

        return [row for rows in left_out.each(by_id, read).values() for row in rows], left_out
    # Of a single policy, wrong labels are the source's fault, so that all that is wrong is listed at once.
    own = {name: Findings(findings.notes) for name in by_id if len(by_id) > 1}
    rows = read_multilabelled(source, settings, policies, own, findings, use)
    left_out = LeftOut({name: wrong.error(named(source)) for name, wrong in own.items() if wrong.count})
    if left_out:
        usable = [{name: label for name, label in row.labels.items() if name not in left_out} for row in rows]
        rows = [replace(row, labels=labels) for row, labels in zip(rows, usable, strict=True)]
    return rows, left_out


def read_shared_rows(
    source: Source,
    settings: DataSettings,
    policies: Sequence[Policy],
    weights: Sequence[float] = (),
    findings: Findings | None = None,
    use: str | None = None,
) -> tuple[list[LabelledConversation], LeftOut]:
    """As :func:`read_policy_rows`; from a file for each policy, rows with the same conversation become one, so that
    their policies share its prefix. ``weights`` are of the sources' rows; empty: all the same."""
    rows, left_out = read_policy_rows(source, settings, policies, findings, use)
    rows = [replace(row, weight=weights[row.source]) for row in rows] if weights else rows
    return merge_rows(rows) if POLICY_PLACE in named(source) else rows, left_out


def known_rows(rows: Iterable[LabelledConversation], known: Iterable[LabelledConversation]) -> Counter[str]:
    """How many of ``rows`` read as one of ``known`` (:func:`text_digest`), by each policy that both have a label of."""
    taught: dict[str, set[str]] = {}
    for row in known:
        taught.setdefault(text_digest(row.conversation), set()).update(row.labels)
    both = (taught.get(text_digest(row.conversation), set()) & row.labels.keys() for row in rows)
    return Counter(name for names in both for name in names)


def source_of(source: Source, policy: Policy) -> Source:
    """The source that holds ``policy``'s rows: ``%policy%`` in a name stands for its id."""
    return [name.replace(POLICY_PLACE, policy.id) for name in each(source)]


def rows_digest(rows: Sequence[LabelledConversation]) -> str:
    """Digest of rows in their order, to tell whether a run's data has changed."""
    whole = hashlib.sha256()
    for row in rows:
        weight = () if row.weight == 1 else (row.weight,)
        own = (row.conversation.messages, sorted(row.labels.items()), *weight)
        whole.update(repr(own).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def merge_rows(rows: Sequence[LabelledConversation]) -> list[LabelledConversation]:
    """One row per conversation, weight and group, with the labels of all its rows; of two labels for one policy the
    first stays."""
    merged: dict[tuple[str, float, str], LabelledConversation] = {}
    for row in rows:
        key = digest(repr(row.conversation.messages)), row.weight, row.group
        known = merged.setdefault(key, row)
        merged[key] = replace(known, labels={**row.labels, **known.labels})
    return list(merged.values())


def count_labels(rows: Iterable[LabelledConversation], policy: Policy) -> dict[str, int]:
    """Rows of each label, in the policy's order."""
    counted = Counter(row.labels.get(policy.id) for row in rows)
    return {label: counted[label] for label in policy.labels}


def require_labels(splits: Splits, policy: Policy) -> None:
    """DataError unless there are rows of each of a policy's labels to learn from and to calibrate by."""
    counts = count_labels(splits.train, policy)
    for name, present in (("train", counts), ("validation", count_labels(splits.calibration(policy.id), policy))):
        if missing := [repr(label) for label, count in present.items() if not count]:
            raise DataError(
                f"the {name} rows ({sum(present.values())}) hold no {' and no '.join(missing)} of policy "
                f"{policy.id!r}; a classifier needs rows of every label: add some, or set data.validation_share higher"
            )
    if sum(count >= LEAST_ROWS for count in counts.values()) < 2:
        raise DataError(too_few(policy))


def too_few(policy: Policy) -> str:
    """The message for training rows of which fewer than two labels have :data:`LEAST_ROWS`."""
    return f"two labels of policy {policy.id!r} must have at least {LEAST_ROWS} training rows each; add rows"
