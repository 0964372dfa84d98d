"""The three splits of a run: training rows, validation rows (to stop and to calibrate by), test rows."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from alora.config.paths import POLICY_PLACE
from alora.config.schema import DataSettings
from alora.data.conversation import (
    Conversation,
    LabelledConversation,
    Message,
    each,
    named,
    read_labelled,
    read_multilabelled,
)
from alora.data.sources import Source
from alora.errors import ConfigError, DataError
from alora.findings import Findings
from alora.policy import Policy

LEAST_ROWS = 2  # of two labels: below it there is nothing to learn, nor a bag of words to compare with


@dataclass(frozen=True)
class Splits:
    """Rows by use. ``test`` is empty when no test rows are given."""

    train: tuple[LabelledConversation, ...]
    validation: tuple[LabelledConversation, ...]
    test: tuple[LabelledConversation, ...] = ()


def read_splits(settings: DataSettings, policy: Policy) -> Splits:
    """Read every split that ``settings`` name; validation rows are taken from the training rows when not given.

    Raises:
        ConfigError: ``data.train`` is not set, or ``validation_share`` is not a share.
        DataError: rows that cannot be used, or a split that lacks a label of the policy.
    """
    splits = _read(settings, lambda source: read_labelled(source_of(source, policy), settings, policy))
    _require_labels(splits, policy)
    return splits


def source_of(source: Source, policy: Policy) -> Source:
    """The source that holds ``policy``'s rows: ``%policy%`` in a name stands for its id."""
    return [one.replace(POLICY_PLACE, policy.id) for one in each(source)]


def read_policy_rows(
    source: Source, settings: DataSettings, policies: Sequence[Policy], findings: Findings | None = None
) -> tuple[list[LabelledConversation], dict[str, DataError]]:
    """Rows of ``policies``, as they stand, from one source or (``%policy%``) from one file for each.

    Returns:
        The rows, and the reason per policy whose own file cannot be used, or whose labels in a common source are wrong;
        it has no labels in the rows.

    Raises:
        DataError: a source of several policies cannot be used.
    """
    if POLICY_PLACE not in named(source):
        return _read_common(source, settings, policies, findings)
    rows: list[LabelledConversation] = []
    unusable: dict[str, DataError] = {}
    for policy in policies:
        try:
            rows += read_labelled(source_of(source, policy), settings, policy, findings)
        except DataError as error:
            unusable[policy.id] = error
    return rows, unusable


def _read_common(
    source: Source, settings: DataSettings, policies: Sequence[Policy], findings: Findings | None
) -> tuple[list[LabelledConversation], dict[str, DataError]]:
    own = {policy.id: Findings() for policy in policies}
    rows = read_multilabelled(source, settings, policies, own, findings)
    unusable = {name: wrong.error(named(source)) for name, wrong in own.items() if wrong.count}
    if unusable:
        usable = [{name: label for name, label in row.labels.items() if name not in unusable} for row in rows]
        rows = [replace(row, labels=labels) for row, labels in zip(rows, usable, strict=True)]
    return rows, unusable


def read_battery_splits(settings: DataSettings, policies: Sequence[Policy]) -> tuple[Splits, dict[str, str]]:
    """Read the rows of several policies, and say why a policy must be left out.

    A source with ``%policy%`` in its name is one file per policy; any other holds rows of all of them. Rows that hold
    the same conversation become one, so that their policies share its prefix.

    Returns:
        The splits, and per unusable policy the reason.

    Raises:
        ConfigError: ``data.train`` is not set, or ``validation_share`` is not a share.
        DataError: a file of several policies cannot be used.
    """
    left_out: dict[str, str] = {}

    def read(source: Source) -> list[LabelledConversation]:
        rows, unusable = read_policy_rows(source, settings, policies)
        for name, error in unusable.items():
            left_out.setdefault(name, str(error))
        return merge_rows(rows) if POLICY_PLACE in named(source) else rows

    splits = _read(settings, read)
    for policy in policies:
        try:
            _require_labels(splits, policy)
        except DataError as error:
            left_out.setdefault(policy.id, str(error))
    return splits, left_out


def _read(settings: DataSettings, read: Callable[[Source], list[LabelledConversation]]) -> Splits:
    if settings.train is None:
        raise ConfigError("no training rows: set data.train=FILE (JSON, CSV or Parquet) or data.train=hub:NAME")
    train = read(settings.train)
    if settings.validation is not None:
        validation = read(settings.validation)
    else:
        train, validation = hold_out(train, settings.validation_share)
    test = read(settings.test) if settings.test is not None else []
    return Splits(tuple(train), tuple(validation), tuple(test))


def merge_rows(rows: Sequence[LabelledConversation]) -> list[LabelledConversation]:
    """One row per conversation, with the labels of all its rows; of two labels for one policy the first stays."""
    merged: dict[tuple[Message, ...], LabelledConversation] = {}
    for row in rows:
        known = merged.get(row.conversation.messages)
        labels = dict(row.labels) if known is None else {**row.labels, **known.labels}
        merged[row.conversation.messages] = replace(known or row, labels=labels)
    return list(merged.values())


def text_digest(conversation: Conversation) -> str:
    """Digest of a conversation's roles and words, blind to case and white space: equal for what reads the same."""
    lines = [f"{m.role}:{' '.join(m.text.casefold().split())}" for m in conversation.messages]
    return _digest("\n".join(lines))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rows_digest(rows: Sequence[LabelledConversation]) -> str:
    """Digest of rows in their order, to tell whether a run's data has changed."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr((row.conversation.messages, sorted(row.labels.items()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def hold_out(
    rows: Sequence[LabelledConversation], share: float
) -> tuple[list[LabelledConversation], list[LabelledConversation]]:
    """Split each policy's rows, ``share`` of every label, by a hash of the text.

    Rows of one group, and duplicates, stay on one side. A policy's split depends on its own rows alone, so it is the
    same whichever policies are read with it. A row on different sides for two policies is on both, each with its label.
    """
    if not 0 < share < 1:
        raise ConfigError(f"data.validation_share={share} must lie between 0 and 1")
    keys = [_digest(f"group:{row.group}") if row.group else text_digest(row.conversation) for row in rows]
    held = {name: _held_out(name, rows, keys, share) for name in {name for row in rows for name in row.labels}}
    sides: tuple[list[LabelledConversation], list[LabelledConversation]] = ([], [])
    for row, key in zip(rows, keys, strict=True):
        for side, wanted in zip(sides, (False, True), strict=True):
            labels = {name: label for name, label in row.labels.items() if (key in held[name]) is wanted}
            if labels or not (row.labels or wanted):
                side.append(row if len(labels) == len(row.labels) else replace(row, labels=labels))
    return sides


def _held_out(name: str, rows: Sequence[LabelledConversation], keys: Sequence[str], share: float) -> set[str]:
    """The keys of rows to hold out for a policy: of each label, rarest first, the lowest ones.

    A label with three rows or more has one on each side, if its rows have different keys.
    """
    counts: dict[str, Counter[str]] = {}  # label → key → rows
    for row, key in zip(rows, keys, strict=True):
        if name in row.labels:
            counts.setdefault(row.labels[name], Counter())[key] += 1
    held: set[str] = set()
    for _, count in sorted(counts.items(), key=lambda item: (item[1].total(), item[0])):
        total = count.total()
        wanted = max(round(share * total), 1 if total > 2 else 0)
        missing = wanted - sum(count[key] for key in held & count.keys())
        for key in sorted(count.keys() - held)[:-1]:
            if missing <= 0:
                break
            held.add(key)
            missing -= count[key]
    return held


def _require_labels(splits: Splits, policy: Policy) -> None:
    for name in ("train", "validation"):
        rows = [row for row in getattr(splits, name) if policy.id in row.labels]
        found = {row.labels[policy.id] for row in rows}
        missing = [label for label in policy.labels if label not in found]
        if missing:
            raise DataError(
                f"the {name} rows ({len(rows)}) hold no {' and no '.join(map(repr, missing))} of policy {policy.id!r}; "
                "a classifier needs rows of every label: add some, or set data.validation_share higher"
            )
    counts = Counter(row.labels.get(policy.id) for row in splits.train)
    if sum(counts[label] >= LEAST_ROWS for label in policy.labels) < 2:
        raise DataError(too_few(policy))


def too_few(policy: Policy) -> str:
    """What is wrong with training rows of which fewer than two labels have :data:`LEAST_ROWS`."""
    return f"two labels of policy {policy.id!r} must have at least {LEAST_ROWS} training rows each; add rows"
