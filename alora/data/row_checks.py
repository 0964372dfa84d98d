"""Check labelled rows before training: labels, duplicates, leakage. Pure, prints nothing."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations

from alora.data.conversation import Conversation, LabelledConversation
from alora.data.files import listed
from alora.data.findings import ERROR, WARNING, Finding
from alora.data.formats import SHARE
from alora.data.messages import digest, text_digest
from alora.data.roles import role_note
from alora.data.splits import LEAST_ROWS, count_labels, too_few
from alora.data.transcripts import seen
from alora.policy import Policy

FEW_ROWS = 8  # of one label: below this a metric is noise
LEAST_POSITIVES = 10  # rows that a threshold is fitted on
RARE_SHARE = 0.05
MORE_POSITIVES = "label more, raise data.validation_share, or give data.validation"
_NOT_LETTERS = re.compile(r"[\W\d_]+")

Rows = Sequence[LabelledConversation]


def check_balance(name: str, rows: Rows, policy: Policy, needed: bool) -> list[Finding]:
    """A split without rows of some label (an error where it is ``needed``), or with hardly any."""
    counts = count_labels(rows, policy)
    calibrates = name == "validation" or any(policy.id in row.folds for row in rows)
    findings = []
    for label, count in counts.items():
        if not count:
            text = f"no row is labelled {label!r}: a classifier needs every label; add rows"
            findings.append(Finding(ERROR if needed else WARNING, "LABEL_ABSENT", name, text))
        elif calibrates and label == policy.positive and count < LEAST_POSITIVES:
            text = f"{count} of {len(rows)} rows are {label!r}, a threshold needs {LEAST_POSITIVES}; {MORE_POSITIVES}"
            findings.append(Finding(WARNING, "FEW_POSITIVES", name, text))
        elif count < FEW_ROWS or count / len(rows) < RARE_SHARE:
            text = f"only {count} of {len(rows)} rows are {label!r}; figures for it will be rough, add rows"
            findings.append(Finding(WARNING, "FEW_ROWS", name, text))
    if name == "train" and all(counts.values()) and sum(count >= LEAST_ROWS for count in counts.values()) < 2:
        findings.append(Finding(ERROR, "TOO_FEW_ROWS", name, too_few(policy)))
    return findings


def check_turns(splits: Mapping[str, Rows]) -> list[Finding]:
    """Rows that are one message that reads as a transcript, and are no exceptions among a policy's rows of a file: an
    app sends such turns with roles, so in other tokens."""
    speaking = list[tuple[set[tuple[str, ...]], LabelledConversation, Mapping[str, str | None]]]()
    all_rows, with_names = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for name, rows in splits.items():
        for row in rows:
            file = row.where.rpartition(":")[0]
            keys = {(name, file, policy) for policy in row.labels} or {(name, file)}
            all_rows.update(keys)
            said = [message for message in row.conversation.messages if message.role != "system"]
            if len(said) == 1 and (names := seen(said[0].content, {})):
                with_names.update(keys)
                speaking.append((keys, row, names))
    shared = {key for key, count in with_names.items() if count * SHARE > all_rows[key]}
    doubtful = [(row, names) for keys, row, names in speaking if keys & shared]
    if not doubtful:
        return []
    places = len({row.where for row, _ in doubtful})  # one on both sides of a split is one
    names = listed(name for name, _ in Counter(chain.from_iterable(names for _, names in doubtful)).most_common(4))
    text = f"{places} rows are one message with lines or tags of {names} ({doubtful[0][0].where}); an app sends turns"
    mend = "if these are turns, make a message of each, or give the text in a column, which data.role_map splits"
    where = ", ".join(name for name in splits if any(key[0] == name for key in shared))
    return [Finding(WARNING, "TRANSCRIPT", where, f"{text}; {mend}")]


def check_roles(role_map: Mapping[str, str], notes: Iterable[str]) -> list[Finding]:
    """Names of ``role_map`` that no turn has, by the ``notes`` on all rows; a role's own name is noted nowhere."""
    known = set(notes)
    names = [name for name, role in role_map.items() if name not in (role, "*") and role_note(name, role) not in known]
    if not names:
        return []
    found = "; ".join(sorted(note for note in known if note.startswith("role "))) or "no other name"
    text = f"no turn is of {listed(names)}; correct it or leave it out; found: {found}"
    return [Finding(WARNING, "ROLE_UNUSED", "data.role_map", text)]


def describe_positive(name: str, rows: Rows, policy: Policy) -> str:
    """Which label is flagged, and how many rows of a split have it: nothing else shows that labels are swapped."""
    counts = count_labels(rows, policy)
    flagged = counts[policy.positive]
    return f"{policy.id} flags {policy.positive!r}, the label of {flagged} of {sum(counts.values())} {name} rows"


def check_duplicates(splits: Mapping[str, Rows], *policies: Policy) -> list[Finding]:
    """Conversations that read the same: twice in a split, with two labels, or in two splits (leakage).

    Sameness is blind to case and white space (:func:`alora.data.messages.text_digest`). Across splits, rows that differ
    in digits and punctuation only are reported as well: templates leak that way.
    """
    findings = list[Finding]()

    def warn(code: str, where: str, text: str) -> None:
        findings.append(Finding(WARNING, code, where, text))

    def torn(group: Rows) -> bool:
        return any(len({row.labels[one.id] for row in group if one.id in row.labels}) > 1 for one in policies)

    exact = {name: _by(lambda row: text_digest(row.conversation), rows) for name, rows in splits.items()}
    for name, groups in exact.items():
        repeated = [group for group in groups.values() if len(group) > 1 and not torn(group)]
        if extra := sum(len(group) - 1 for group in repeated):
            text = f"{extra} of {len(splits[name])} rows repeat another row's conversation ({_where(repeated)})"
            warn("DUPLICATES", name, text)
    everywhere = _by(lambda row: text_digest(row.conversation), [*chain.from_iterable(splits.values())])
    if doubled := [group for group in everywhere.values() if torn(group)]:
        text = f"{len(doubled)} conversations have two different labels ({_where(doubled)}); decide on one"
        warn("TWO_LABELS", "labels", text)
    near = {name: _by(lambda row: _letters(row.conversation), rows) for name, rows in splits.items()}
    grouped = {name: _by(lambda row: row.group, rows) for name, rows in splits.items()}
    for first, second in combinations(splits, 2):
        shared = _in_both(exact[first], exact[second])
        if same := {key: rows for key, rows in shared.items() if _compete(exact[first][key], rows)}:
            leaks = _where([[rows[0], exact[first][key][0]] for key, rows in same.items()])
            leaked = f"{sum(map(len, same.values()))} of its {len(splits[second])} rows"
            warn("LEAK", second, f"{leaked} are also in {first} ({leaks}); remove them")
        common = _in_both(grouped[first], grouped[second]).items()
        if names := [name for name, rows in common if name and _compete(grouped[first][name], rows)]:
            text = f"{len(names)} groups of data.columns.group are also in {first}, such as {names[0]!r}"
            warn("GROUP_LEAK", second, text)
        leaking = {id(row) for rows in shared.values() for row in rows}
        almost = _in_both(near[first], near[second]).items()
        left = {key: kept for key, rows in almost if (kept := [row for row in rows if id(row) not in leaking])}
        if differ := sum(map(len, left.values())):
            pairs = _where([[rows[0], near[first][key][0]] for key, rows in left.items()])
            text = f"{differ} of its {len(splits[second])} rows differ from one in {first} in digits and punctuation"
            warn("NEAR_LEAK", second, f"{text} only ({pairs})")
    return findings


def _in_both(first: Mapping[str, Rows], second: Mapping[str, Rows]) -> dict[str, Rows]:
    """The groups of ``second`` whose keys ``first`` has too, by key."""
    return {key: second[key] for key in sorted(first.keys() & second.keys())}


def _compete(first: Rows, second: Rows) -> bool:
    """Whether some policy has labels in both: only then has it trained on rows that it is measured on."""
    return not {name for row in first for name in row.labels}.isdisjoint(name for row in second for name in row.labels)


def _by(key: Callable[[LabelledConversation], str], rows: Rows) -> dict[str, list[LabelledConversation]]:
    groups: dict[str, list[LabelledConversation]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _letters(conversation: Conversation) -> str:
    """Digest of the words without digits and punctuation."""
    words = (f"{m.role}:{_NOT_LETTERS.sub(' ', m.text.casefold()).strip()}" for m in conversation.messages)
    return digest("\n".join(words))


def _where(groups: Sequence[Sequence[LabelledConversation]]) -> str:
    shown = [" = ".join(row.where for row in group[:2]) for group in groups[:3]]
    return ", ".join(shown) + (", ..." if len(groups) > 3 else "")
