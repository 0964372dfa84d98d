"""The three splits of a run: training rows, validation rows (to stop and to calibrate by), test rows."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from alora.config.paths import POLICY_PLACE
from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.labelled import none_labelled, read_labelled, read_multilabelled
from alora.data.sources import Source, each, named
from alora.errors import ConfigError, DataError, LeftOut
from alora.findings import Findings
from alora.policy import Policy

LEAST_ROWS = 2  # of two labels: below it there is nothing to learn, nor a bag of words to compare with


@dataclass(frozen=True)
class Splits:
    """Rows by use. ``test`` is empty when no test rows are given."""

    train: tuple[LabelledConversation, ...]
    validation: tuple[LabelledConversation, ...]
    test: tuple[LabelledConversation, ...] = ()

    @property
    def held_out(self) -> tuple[LabelledConversation, ...]:
        """The rows to measure on: the test rows, or the validation rows where there are none."""
        return self.test or self.validation

    def counts(self, policy: Policy) -> dict[str, dict[str, int]]:
        """Rows of ``policy`` by split and label."""
        return {
            name: {label: sum(row.labels.get(policy.id) == label for row in rows) for label in policy.labels}
            for name, rows in vars(self).items()
        }

    def digests(self, policies: Sequence[Policy]) -> dict[str, str]:
        """What must not have changed when a run resumes: the rows by digest, the policies by their text."""
        rows = {f"{name} rows": rows_digest(rows) for name, rows in vars(self).items()}
        return rows | {f"policy {policy.id}": repr(policy.as_dict()) for policy in policies}


def read_splits(
    settings: DataSettings, policies: Sequence[Policy], notes: Counter[str] | None = None
) -> tuple[Splits, LeftOut]:
    """Read every split that ``settings`` name; validation rows are taken from the training rows when not given.

    Args:
        notes: counts the values that were not read literally (mapped labels, skipped rows).

    Returns:
        The splits, and the policies whose rows cannot be used, each with the reason.

    Raises:
        ConfigError: ``data.train`` is not set, or ``validation_share`` is not a share.
        DataError: a source that several policies share cannot be used.
        AllFailed: no policy's rows can be used; the reason itself where there is one policy.
    """
    if settings.train is None:
        raise ConfigError("no training rows: set data.train=FILE (JSON, CSV or Parquet) or data.train=hub:NAME")
    left_out, by_id = LeftOut(), {policy.id: policy for policy in policies}

    def read(source: Source | None, weights: Sequence[float] = ()) -> list[LabelledConversation]:
        if source is None:
            return []
        rows, unusable = read_shared_rows(source, settings, policies, weights, Findings(notes))
        labelled = {name for row in rows for name in row.labels}
        for name in (name for name in by_id if name not in labelled):
            left_out.setdefault(name, unusable.get(name, none_labelled(source, len(rows), name)))
        left_out.require_some(by_id)
        return [row for row in rows if row.labels]

    train, validation = read(settings.train, settings.weights), read(settings.validation)
    if settings.validation is None:
        train, validation = hold_out(train, settings.validation_share)
    splits = Splits(tuple(train), tuple(validation), tuple(read(settings.test)))
    left_out.each([name for name in by_id if name not in left_out], lambda name: require_labels(splits, by_id[name]))
    left_out.require_some(by_id)
    return splits, left_out


def read_policy_rows(
    source: Source, settings: DataSettings, policies: Sequence[Policy], findings: Findings | None = None
) -> tuple[list[LabelledConversation], LeftOut]:
    """Unmerged rows of ``policies`` from one source or (``%policy%`` in its name) from one file for each.

    Args:
        findings: keeps the notes on how the rows were read.

    Returns:
        The rows, and the policies whose own file, or whose labels in a common source, cannot be used; they have no
        labels in the rows.

    Raises:
        DataError: a source of several policies cannot be used.
    """
    if POLICY_PLACE not in named(source):
        return _read_common(source, settings, policies, findings)
    left_out, by_id = LeftOut(), {policy.id: policy for policy in policies}

    def read(name: str) -> list[LabelledConversation]:
        own = Findings(
            None if findings is None else findings.notes
        )  # what is wrong in one file is not the fault of the next
        return read_labelled(source_of(source, by_id[name]), settings, by_id[name], own)

    return [row for rows in left_out.each(by_id, read).values() for row in rows], left_out


def read_shared_rows(
    source: Source,
    settings: DataSettings,
    policies: Sequence[Policy],
    weights: Sequence[float] = (),
    findings: Findings | None = None,
) -> tuple[list[LabelledConversation], LeftOut]:
    """As :func:`read_policy_rows`; from a file for each policy, rows with the same conversation become one, so that
    their policies share its prefix. ``weights`` are of the sources' rows; empty: all the same."""
    rows, left_out = read_policy_rows(source, settings, policies, findings)
    rows = [replace(row, weight=weights[row.source]) for row in rows] if weights else rows
    return merge_rows(rows) if POLICY_PLACE in named(source) else rows, left_out


def known_rows(rows: Iterable[LabelledConversation], known: Iterable[LabelledConversation]) -> Counter[str]:
    """How many of ``rows`` read as one of ``known`` (:func:`text_digest`), by each policy that both have a label of."""
    taught: dict[str, set[str]] = {}
    for row in known:
        taught.setdefault(text_digest(row.conversation), set()).update(row.labels)
    return Counter(
        name for row in rows for name in taught.get(text_digest(row.conversation), set()) & row.labels.keys()
    )


def source_of(source: Source, policy: Policy) -> Source:
    """The source that holds ``policy``'s rows: ``%policy%`` in a name stands for its id."""
    return [name.replace(POLICY_PLACE, policy.id) for name in each(source)]


def _read_common(
    source: Source, settings: DataSettings, policies: Sequence[Policy], findings: Findings | None
) -> tuple[list[LabelledConversation], LeftOut]:
    # Of a single policy, wrong labels are the source's fault, so that all that is wrong is listed at once.
    findings = Findings() if findings is None else findings
    own = {policy.id: Findings(findings.notes) for policy in policies if len(policies) > 1}
    rows = read_multilabelled(source, settings, policies, own, findings)
    left_out = LeftOut({name: wrong.error(named(source)) for name, wrong in own.items() if wrong.count})
    if left_out:
        usable = [{name: label for name, label in row.labels.items() if name not in left_out} for row in rows]
        rows = [replace(row, labels=labels) for row, labels in zip(rows, usable, strict=True)]
    return rows, left_out


def merge_rows(rows: Sequence[LabelledConversation]) -> list[LabelledConversation]:
    """One row per conversation, weight and group, with the labels of all its rows; of two labels for one policy the
    first stays."""
    merged: dict[tuple[str, float, str], LabelledConversation] = {}
    for row in rows:
        key = digest(repr(row.conversation.messages)), row.weight, row.group
        known = merged.get(key)
        labels = dict(row.labels) if known is None else {**row.labels, **known.labels}
        merged[key] = replace(known or row, labels=labels)
    return list(merged.values())


def text_digest(conversation: Conversation) -> str:
    """Digest of a conversation's roles and words, blind to case and white space: equal for texts that read the same."""
    lines = [f"{m.role}:{' '.join(m.text.casefold().split())}" for m in conversation.messages]
    return digest("\n".join(lines))


def digest(text: str) -> str:
    """SHA-256 of any text, lone surrogates included."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def rows_digest(rows: Sequence[LabelledConversation]) -> str:
    """Digest of rows in their order, to tell whether a run's data has changed."""
    whole = hashlib.sha256()
    for row in rows:
        weight = () if row.weight == 1 else (row.weight,)
        own = (row.conversation.messages, sorted(row.labels.items()), *weight)
        whole.update(repr(own).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def hold_out(
    rows: Sequence[LabelledConversation], share: float
) -> tuple[list[LabelledConversation], list[LabelledConversation]]:
    """Split each policy's rows, ``share`` of every label, by a hash of the text.

    Rows of one group, and duplicates, stay on one side, and so do groups that share a text. A policy's split depends on
    its own rows alone, so it is the same whichever policies are read with it. A row on different sides for two policies
    is on both, each with its label.

    Raises:
        DataError: all rows are of one group, or of groups that share texts.
    """
    if not 0 < share < 1:
        raise ConfigError(f"data.validation_share={share} must lie between 0 and 1")
    texts = [text_digest(row.conversation) for row in rows]
    groups = [digest(f"group:{row.group}") if row.group else "" for row in rows]
    keys = {name: _keys(name, rows, texts, groups) for name in {name for row in rows for name in row.labels}}
    if len(rows) > 1 and all(groups) and keys and all(len(set(own)) == 1 for own in keys.values()):
        which = (
            f"one group, {rows[0].group!r}" if len(set(groups)) == 1 else "groups that share texts, one with the next"
        )
        raise DataError(f"all {len(rows)} rows are of {which}, and a group stays on one side of a split; "
                        "name another column in data.columns.group, or give data.validation")  # fmt: skip
    held_keys = {name: _held_out(name, rows, own, share) for name, own in keys.items()}
    sides: tuple[list[LabelledConversation], list[LabelledConversation]] = ([], [])
    for number, row in enumerate(rows):
        held = {name: keys[name][number] in held_keys[name] for name in row.labels}
        for side, wanted in zip(sides, (False, True), strict=True):
            labels = {name: label for name, label in row.labels.items() if held[name] is wanted}
            if labels or not (row.labels or wanted):
                side.append(row if len(labels) == len(row.labels) else replace(row, labels=labels))
    return sides


def _keys(
    name: str, rows: Sequence[LabelledConversation], texts: Sequence[str], groups: Sequence[str]
) -> Sequence[str]:
    """A key for each row: the same for those of a policy's rows that share a group or a text, at however many removes.

    A text's digest, or the group's. Of several joined groups, a digest of the lowest one's: that itself would be the
    lower, the more groups are joined, and they would all be held out.
    """
    of_a_group = set(groups) - {""}
    if not of_a_group:
        return texts
    joined: dict[str, str] = {}  # group or text → one that its rows share

    def root(key: str) -> str:
        while (other := joined.setdefault(key, key)) != key:
            joined[key] = joined[other]
            key = other
        return key

    for row, group, text in zip(rows, groups, texts, strict=True):
        if group and name in row.labels:
            first, second = sorted((root(group), root(text)), key=lambda key: (key not in of_a_group, key))
            joined[second] = first
    members = Counter(map(root, of_a_group))
    keys = [root(group or text) for group, text in zip(groups, texts, strict=True)]
    return [digest(key) if members[key] > 1 else key for key in keys]


def _held_out(name: str, rows: Sequence[LabelledConversation], keys: Sequence[str], share: float) -> set[str]:
    """The keys of rows to hold out for a policy: of each label, rarest first, the lowest ones.

    A label keeps a key to train on; one with three rows or more has one on each side, if it has different keys that no
    other label needs.
    """
    counts: dict[str, Counter[str]] = {}  # label → key → rows
    for row, key in zip(rows, keys, strict=True):
        if name in row.labels:
            counts.setdefault(row.labels[name], Counter())[key] += 1
    held_keys: set[str] = set()
    left = {label: len(count) for label, count in counts.items()}  # keys to train on
    for _, count in sorted(counts.items(), key=lambda item: (item[1].total(), item[0])):
        total = count.total()
        wanted = max(round(share * total), 1 if total > 2 else 0)
        missing = wanted - sum(count[key] for key in held_keys & count.keys())
        for key in sorted(count.keys() - held_keys):
            if missing <= 0:
                break
            labels = [label for label, other in counts.items() if key in other]
            if all(left[label] > 1 for label in labels):
                held_keys.add(key)
                missing -= count[key]
                left.update((label, left[label] - 1) for label in labels)
    return held_keys


def require_labels(splits: Splits, policy: Policy) -> None:
    """DataError unless there are rows of each of a policy's labels to learn from and to calibrate by."""
    for name in ("train", "validation"):
        rows = [row for row in getattr(splits, name) if policy.id in row.labels]
        present = {row.labels[policy.id] for row in rows}
        missing = [label for label in policy.labels if label not in present]
        if missing:
            raise DataError(
                f"the {name} rows ({len(rows)}) hold no {' and no '.join(map(repr, missing))} of policy {policy.id!r}; "
                "a classifier needs rows of every label: add some, or set data.validation_share higher"
            )
    counts = Counter(row.labels.get(policy.id) for row in splits.train)
    if sum(counts[label] >= LEAST_ROWS for label in policy.labels) < 2:
        raise DataError(too_few(policy))


def too_few(policy: Policy) -> str:
    """The message for training rows of which fewer than two labels have :data:`LEAST_ROWS`."""
    return f"two labels of policy {policy.id!r} must have at least {LEAST_ROWS} training rows each; add rows"
