"""Check labelled rows before training: labels, duplicates, leakage. Pure, prints nothing."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from alora.data.conversation import Conversation, LabelledConversation
from alora.data.splits import LEAST_ROWS, text_digest, too_few
from alora.policy import Policy

ERROR, WARNING = "error", "warning"
FEW_ROWS = 8  # of one label: below this a metric is noise
RARE_SHARE = 0.05
_NOT_LETTERS = re.compile(r"[\W\d_]+")

Rows = Sequence[LabelledConversation]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (``error``: no run) or doubtful (``warning``), with its place.

    ``count`` is more than one where it stands for several that are not shown.
    """

    severity: str
    where: str
    problem: str
    count: int = 1


def check_balance(name: str, rows: Rows, policy: Policy, needed: bool) -> list[Finding]:
    """A split without rows of some label (an error where it is ``needed``), or with hardly any."""
    counts = count_labels(rows, policy)
    findings = []
    for label, count in counts.items():
        if not count:
            text = f"no row is labelled {label!r}: a classifier needs every label; add rows"
            findings.append(Finding(ERROR if needed else WARNING, name, text))
        elif count < FEW_ROWS or count / len(rows) < RARE_SHARE:
            text = f"only {count} of {len(rows)} rows are {label!r}; figures for it will be rough, add rows"
            findings.append(Finding(WARNING, name, text))
    if name == "train" and all(counts.values()) and sum(count >= LEAST_ROWS for count in counts.values()) < 2:
        findings.append(Finding(ERROR, name, too_few(policy)))
    return findings


def count_labels(rows: Rows, policy: Policy) -> dict[str, int]:
    """Rows of each label, in the policy's order."""
    counted = Counter(row.labels.get(policy.id) for row in rows)
    return {label: counted[label] for label in policy.labels}


def check_duplicates(splits: Mapping[str, Rows], *policies: Policy) -> list[Finding]:
    """Conversations that read the same: twice in a split, with two labels, or in two splits (leakage).

    Sameness is blind to case and white space (:func:`alora.data.splits.text_digest`). Across splits, rows that differ
    in digits and punctuation only are told as well: templates leak that way.
    """
    findings = []
    exact = {name: _by_digest(rows, text_digest) for name, rows in splits.items()}
    for name, groups in exact.items():
        repeated = [group for group in groups.values() if len(group) > 1]
        if extra := sum(len(group) - 1 for group in repeated):
            text = f"{extra} of {len(splits[name])} rows repeat another row's conversation ({_places(repeated)})"
            findings.append(Finding(WARNING, name, text))
    everywhere = _by_digest([row for rows in splits.values() for row in rows], text_digest)
    torn = [group for group in everywhere.values() if any(_disagree(group, policy) for policy in policies)]
    if torn:
        text = f"{len(torn)} conversations have two different labels ({_places(torn)}); decide on one"
        findings.append(Finding(WARNING, "labels", text))
    near = {name: _by_digest(rows, _letters) for name, rows in splits.items()}
    for one, other in combinations(splits, 2):
        same = sorted(exact[one].keys() & exact[other].keys())
        leaks = [[exact[other][key][0], exact[one][key][0]] for key in same]
        if leaks:
            leaked = sum(len(exact[other][key]) for key in same)
            text = f"{leaked} of its {len(splits[other])} rows are also in {one} ({_places(leaks)}); remove them"
            findings.append(Finding(WARNING, other, text))
        almost = near[one].keys() & near[other].keys() - {_letters(pair[0].conversation) for pair in leaks}
        if almost:
            pairs = [[near[other][key][0], near[one][key][0]] for key in sorted(almost)]
            text = f"{len(almost)} rows differ from one in {one} in digits and punctuation only ({_places(pairs)})"
            findings.append(Finding(WARNING, other, text))
    return findings


def _disagree(group: Rows, policy: Policy) -> bool:
    return len({row.labels[policy.id] for row in group if policy.id in row.labels}) > 1


def _by_digest(rows: Rows, digest: Callable[[Conversation], str]) -> dict[str, list[LabelledConversation]]:
    groups: dict[str, list[LabelledConversation]] = {}
    for row in rows:
        groups.setdefault(digest(row.conversation), []).append(row)
    return groups


def _letters(conversation: Conversation) -> str:
    return "\n".join(f"{m.role}:{_NOT_LETTERS.sub(' ', m.content.casefold()).strip()}" for m in conversation.messages)


def _places(groups: Sequence[Sequence[LabelledConversation]]) -> str:
    shown = [" = ".join(row.where for row in group[:2]) for group in groups[:3]]
    return ", ".join(shown) + (", ..." if len(groups) > 3 else "")
