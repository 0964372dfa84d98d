"""Which training rows are held out: a share of them, or each in turn, by one of several folds.

A policy's choice depends on its own rows alone, so it is the same whichever policies are read with it. Rows of one
group, and rows that read the same, are held out together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from alora.data.conversation import LabelledConversation
from alora.data.messages import digest, text_digest
from alora.errors import DataError
from alora.policy import Policy

# Below so many labelled rows of a policy, so many folds; of more, one split calibrates. What learns from two thirds of
# 100 rows lags so far behind the adapter of all of them that its answers calibrate it badly (docs/accuracy.md).
USUAL_FOLDS = ((150, 5), (600, 3))


def at_most(rows: Sequence[LabelledConversation], policies: Sequence[Policy], limit: int) -> list[LabelledConversation]:
    """``rows`` with at most ``limit`` labels of each policy, the first by a hash of the text; order is kept."""
    ranked = sorted(range(len(rows)), key=lambda index: text_digest(rows[index].conversation))
    kept: dict[int, dict[str, str]] = {}  # by index: files of one name in two folders share their rows' ids
    for policy in policies:
        for index in [index for index in ranked if policy.id in rows[index].labels][:limit]:
            kept.setdefault(index, {})[policy.id] = rows[index].labels[policy.id]
    return [replace(rows[index], labels=labels) for index, labels in sorted(kept.items())]


def fold_rows(rows: Sequence[LabelledConversation], folds: int | None) -> list[LabelledConversation]:
    """``rows``, each with the fold that holds it out, for every policy that it is labelled for; 1 fold: none, None:
    :data:`USUAL_FOLDS`.

    Every label's rows are dealt out to the folds as evenly as groups allow. A label that lies in one fold alone would
    be unknown to the adapter that is asked about it, so the policy is then left without folds.
    """
    keys, _ = _all_keys(rows)
    dealt = {}
    for name, own in keys.items():
        labelled = [(row.labels[name], key) for row, key in zip(rows, own, strict=True) if name in row.labels]
        usual = next((count for limit, count in USUAL_FOLDS if len(labelled) < limit), 1)
        wanted = usual if folds is None else folds
        if wanted > 1 and (fold_of := _deal(labelled, wanted)):
            dealt[name] = fold_of
    return [
        replace(row, folds={name: dealt[name][keys[name][number]] for name in row.labels if name in dealt})
        for number, row in enumerate(rows)
    ]


def _deal(labelled: Sequence[tuple[str, str]], folds: int) -> dict[str, int] | None:
    """The fold of each key, given rows' labels and keys; None where all rows of a label would lie in one.

    The rarest label's keys come first, each to the fold that has fewest of that label's rows, then fewest rows.
    """
    counts: dict[str, Counter[str]] = {}  # label → key → rows
    for label, key in labelled:
        counts.setdefault(label, Counter())[key] += 1
    fold_of: dict[str, int] = {}
    sizes = [Counter[str]() for _ in range(folds)]
    for label, count in sorted(counts.items(), key=lambda item: (item[1].total(), item[0])):
        for key in sorted(count.keys() - fold_of.keys()):
            fold = min(range(folds), key=lambda number: (sizes[number][label], sizes[number].total(), number))
            fold_of[key] = fold
            sizes[fold].update({name: other[key] for name, other in counts.items() if key in other})
    spread = all(sum(size[label] > 0 for size in sizes) > 1 for label in counts)
    return fold_of if spread else None


def _all_keys(rows: Sequence[LabelledConversation]) -> tuple[dict[str, Sequence[str]], list[str]]:
    """Each policy's :func:`_keys`, and the digest of each row's group."""
    texts = [text_digest(row.conversation) for row in rows]
    groups = [digest(f"group:{row.group}") if row.group else "" for row in rows]
    return {name: _keys(name, rows, texts, groups) for name in {name for row in rows for name in row.labels}}, groups


def hold_out(
    rows: Sequence[LabelledConversation], share: float
) -> tuple[list[LabelledConversation], list[LabelledConversation]]:
    """Split each policy's rows, ``share`` of every label, by a hash of the text; DataError where all are of one group,
    or of groups that share texts.

    Rows of one group, and duplicates, stay on one side, and so do groups that share a text. A row on different sides
    for two policies is on both, each with its label. The rows of a policy in folds all stay on the first side.
    """
    keys, groups = _all_keys(rows)
    keys = {name: own for name, own in keys.items() if not any(name in row.folds for row in rows)}
    if len(rows) > 1 and all(groups) and keys and all(len(set(own)) == 1 for own in keys.values()):
        which = f"one group, {rows[0].group!r}" if len(set(groups)) == 1 else "groups that share texts with the next"
        raise DataError(f"all {len(rows)} rows are of {which}, and a group stays on one side of a split; "
                        "name another column in data.columns.group, or give data.validation")  # fmt: skip
    held_keys = {name: _held_out(name, rows, own, share) for name, own in keys.items()}
    sides: tuple[list[LabelledConversation], list[LabelledConversation]] = ([], [])
    for number, row in enumerate(rows):
        held = {name: name in keys and keys[name][number] in held_keys[name] for name in row.labels}
        for side, wanted in zip(sides, (False, True), strict=True):
            labels = {name: label for name, label in row.labels.items() if held[name] is wanted}
            if labels or not (row.labels or wanted):
                folds = {name: fold for name, fold in row.folds.items() if name in labels}
                side.append(row if len(labels) == len(row.labels) else replace(row, labels=labels, folds=folds))
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
