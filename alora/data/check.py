"""Check labelled rows before training: labels, duplicates, leakage. Pure, prints nothing."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, combinations

from alora.data.cells import COLON, GATHER, INDENT, STAMP, listed, role_note, usual_role, words_of
from alora.data.conversation import Conversation, LabelledConversation
from alora.data.formats import shortened
from alora.data.splits import LEAST_ROWS, digest, text_digest, too_few
from alora.findings import ERROR, WARNING, Finding
from alora.policy import Policy

FEW_ROWS = 8  # of one label: below this a metric is noise
LEAST_POSITIVES = 10  # validation rows that a threshold is fitted on
RARE_SHARE = 0.05
MORE_POSITIVES = "label more, raise data.validation_share, or give data.validation"
_SPEAKER = re.compile(
    rf"^{INDENT}{STAMP}[^\w\n:-]{{0,4}}(\w(?:[\w .-]{{0,29}}[\w.-])?){COLON}(?!//)", re.MULTILINE
)  # "Agent:", "### Agent:", "**Agent:**"
_BREAK = re.compile(r"<br\s{0,2}/?>|[\r\x0b\x0c\x85\u2028\u2029]", re.IGNORECASE)  # of a line, for some
# Words of names that a form or a passage has hardly.
_REPLYING = {"assistant", "agent", "bot", "chatbot", "ai", "gpt", "support", "operator", "rep", "advisor"}
_COLUMNS = f"{GATHER}, or into one text where a line with its speaker opens every turn, for data.role_map to split"
_WORDS = 4  # of a name, and no sentence
_NOT_LETTERS = re.compile(r"[\W\d_]+")

Rows = Sequence[LabelledConversation]


def check_balance(name: str, rows: Rows, policy: Policy, needed: bool) -> list[Finding]:
    """A split without rows of some label (an error where it is ``needed``), or with hardly any."""
    counts = count_labels(rows, policy)
    findings = []
    for label, count in counts.items():
        if not count:
            text = f"no row is labelled {label!r}: a classifier needs every label; add rows"
            findings.append(Finding(ERROR if needed else WARNING, "LABEL_ABSENT", name, text))
        elif name == "validation" and label == policy.positive and count < LEAST_POSITIVES:
            text = f"{count} of {len(rows)} rows are {label!r}, a threshold needs {LEAST_POSITIVES}; {MORE_POSITIVES}"
            findings.append(Finding(ERROR, "FEW_POSITIVES", name, text))
        elif count < FEW_ROWS or count / len(rows) < RARE_SHARE:
            text = f"only {count} of {len(rows)} rows are {label!r}; figures for it will be rough, add rows"
            findings.append(Finding(WARNING, "FEW_ROWS", name, text))
    if name == "train" and all(counts.values()) and sum(count >= LEAST_ROWS for count in counts.values()) < 2:
        findings.append(Finding(ERROR, "TOO_FEW_ROWS", name, too_few(policy)))
    return findings


def count_labels(rows: Rows, policy: Policy) -> dict[str, int]:
    """Rows of each label, in the policy's order."""
    counted = Counter(row.labels.get(policy.id) for row in rows)
    return {label: counted[label] for label in policy.labels}


def check_turns(name: str, rows: Rows) -> list[Finding]:
    """Most rows are one message that reads as a transcript, or have one in their first text column: an app sends such
    turns with roles, so in other tokens."""
    others = [row for row in rows if not row.conversation.unsplit]  # than those of check_unsplit
    in_columns = [_speakers(row) for row in others if row.conversation.by_column]
    common = _common(in_columns, len(rows))
    replying = [names for names in in_columns if not _REPLYING.isdisjoint(chain(*map(words_of, names)))]
    if (len(common) > 1 and not _REPLYING.isdisjoint(chain(*map(words_of, common)))) or _several(replying, len(rows)):
        lines = _lines_of(common, in_columns)
        text = f"most rows have lines of {lines} in their first text column, and an app sends turns; if these are turns"
        return [Finding(WARNING, "TRANSCRIPT", name, f"{text}, {_COLUMNS}")]
    whole = [_speakers(row) for row in others if not row.conversation.by_column]
    common = _common(whole, len(rows))
    if len(common) < 2 and not _several(whole, len(rows)):
        return []
    lines = _lines_of(common, whole)
    text = f"most rows are one message with lines of {lines}, and an app sends turns; if these are turns"
    if len(common) < 2:
        return [Finding(WARNING, "TRANSCRIPT", name, f"{text}, {_COLUMNS}")]
    roles = ", ".join(f"{speaker}: {usual_role(speaker) or 'ROLE'}" for speaker in common)
    said = f"say who speaks, and leave out what is no speaker: 'data.role_map={{{roles}}}'"
    return [Finding(WARNING, "TRANSCRIPT", name, f"{text}, {said}")]


def check_unsplit(name: str, rows: Rows) -> list[Finding]:
    """Rows where a speaker of ``data.role_map`` stands within another's message: no share of them is what was meant."""
    groups = [
        [row for row in rows if row.conversation.unsplit and row.conversation.by_column == by] for by in (False, True)
    ]
    return [_unsplit(name, found, len(rows)) for found in groups if found]


def _unsplit(name: str, unsplit: Rows, count: int) -> Finding:
    first, speaker = unsplit[0], unsplit[0].conversation.unsplit[0]
    texts = "\n".join(message.content for message in first.conversation.messages)
    place = re.search(rf"(?<!\w){re.escape(speaker)}(?={COLON})", texts)
    around = texts[: place.end() + 1 if place else 0][-32:]
    rule = (
        "a text is split where a line opens with a speaker of data.role_map, spelt so, a time stamp before it or not, "
        "if its first line does"
    )
    mend = "put line breaks before the speakers, cut what stands there, or name who speaks there"
    if first.conversation.by_column:
        rule, mend = "a text next to others of its row is not split by data.role_map", f"if these are turns, {_COLUMNS}"
    found = f"{len(unsplit)} of {count} rows have '{speaker}:' within a message"
    text = f"{found}: {rule}; here {shortened(around)} ({first.where}); {mend}"
    return Finding(WARNING, "TRANSCRIPT", name, text)


def _common(speakers: Iterable[Iterable[str]], count: int) -> list[str]:
    """The names that most of ``count`` rows share."""
    return sorted(name for name, times in Counter(chain(*speakers)).most_common(4) if times > count / 2)


def _several(speakers: Iterable[Collection[str]], count: int) -> bool:
    """Whether most of ``count`` rows have several speakers, be they others in each."""
    return sum(len([name for name in names if len(name.split()) <= _WORDS]) > 1 for names in speakers) > count / 2


def _lines_of(common: Sequence[str], speakers: Iterable[Iterable[str]]) -> str:
    if len(common) > 1:
        return " and ".join(f"'{speaker}:'" for speaker in common)
    names = [name for name, _ in Counter(chain(*speakers)).most_common(3)]
    return f"several speakers, others in each, such as {listed(names)}"


def _speakers(row: LabelledConversation) -> Collection[str]:
    """The names with which lines open of a row's only message, or of its first text column."""
    messages = [message for message in row.conversation.messages if message.role != "system"]
    if not messages or (len(messages) > 1 and not row.conversation.by_column):
        return ()
    return dict.fromkeys(_SPEAKER.findall(_BREAK.sub("\n", messages[0].content)))


def check_roles(role_map: Mapping[str, str], rows: Rows, notes: Iterable[str]) -> list[Finding]:
    """Names of ``role_map`` that no turn has, by the ``notes`` on all ``rows``; a role's own name is noted nowhere."""
    known = set(notes)
    unused = [name for name, role in role_map.items() if name != role and role_note(name, role) not in known]
    if not unused:
        return []
    roles = {message.role for row in rows for message in row.conversation.messages}
    found = [f"roles {', '.join(sorted(roles))}", *sorted(note for note in known if note.startswith("role "))]
    may_split = [row for row in rows if not row.conversation.by_column]
    if speakers := [name for name, _ in Counter(chain(*map(_speakers, may_split))).most_common(4)]:
        found.append(f"texts with lines of {listed(speakers)}, which are turns only if the first line is of role_map")
    unsplit = {name for row in rows for name in row.conversation.unsplit}
    if spelt := [name for name in unused if name in unsplit]:
        found.append(f"messages with {listed(spelt)} within them (TRANSCRIPT)")
    mend = "; correct it or leave it out" if len(spelt) < len(unused) else ""
    text = f"no turn is of {listed(unused)}{mend}; found: {'; '.join(found)}"
    return [Finding(WARNING, "ROLE_UNUSED", "data.role_map", text)]


def describe_positive(name: str, rows: Rows, policy: Policy) -> str:
    """Which label is flagged, and how many rows of a split have it: nothing else shows that labels are swapped."""
    counts = count_labels(rows, policy)
    flagged = counts[policy.positive]
    return f"{policy.id} flags {policy.positive!r}, the label of {flagged} of {sum(counts.values())} {name} rows"


def check_duplicates(splits: Mapping[str, Rows], *policies: Policy) -> list[Finding]:
    """Conversations that read the same: twice in a split, with two labels, or in two splits (leakage).

    Sameness is blind to case and white space (:func:`alora.data.splits.text_digest`). Across splits, rows that differ
    in digits and punctuation only are reported as well: templates leak that way.
    """
    findings = []
    exact = {name: _by(lambda row: text_digest(row.conversation), rows) for name, rows in splits.items()}
    for name, groups in exact.items():
        repeated = [group for group in groups.values() if len(group) > 1 and not _torn(group, policies)]
        if extra := sum(len(group) - 1 for group in repeated):
            text = f"{extra} of {len(splits[name])} rows repeat another row's conversation ({_where(repeated)})"
            findings.append(Finding(WARNING, "DUPLICATES", name, text))
    everywhere: dict[str, list[LabelledConversation]] = {}
    for groups in exact.values():
        for key, rows in groups.items():
            everywhere.setdefault(key, []).extend(rows)
    torn = [group for group in everywhere.values() if _torn(group, policies)]
    if torn:
        text = f"{len(torn)} conversations have two different labels ({_where(torn)}); decide on one"
        findings.append(Finding(WARNING, "TWO_LABELS", "labels", text))
    near = {name: _by(lambda row: _letters(row.conversation), rows) for name, rows in splits.items()}
    grouped = {name: _by(lambda row: row.group, rows) for name, rows in splits.items()}
    for first, second in combinations(splits, 2):
        shared = exact[first].keys() & exact[second].keys()
        same = [key for key in shared if _compete(exact[first][key], exact[second][key])]
        leaks = [[exact[second][key][0], exact[first][key][0]] for key in sorted(same)]
        if leaks:
            leaked = sum(len(exact[second][key]) for key in same)
            text = f"{leaked} of its {len(splits[second])} rows are also in {first} ({_where(leaks)}); remove them"
            findings.append(Finding(WARNING, "LEAK", second, text))
        common = grouped[first].keys() & grouped[second].keys() - {""}
        if common := [group for group in common if _compete(grouped[first][group], grouped[second][group])]:
            text = f"{len(common)} groups of data.columns.group are also in {first}, such as {min(common)!r}"
            findings.append(Finding(WARNING, "GROUP_LEAK", second, text))
        almost = near[first].keys() & near[second].keys() - {
            _letters(exact[first][key][0].conversation) for key in shared
        }
        if almost:
            pairs = [[near[second][key][0], near[first][key][0]] for key in sorted(almost)]
            text = f"{len(almost)} rows differ from one in {first} in digits and punctuation only ({_where(pairs)})"
            findings.append(Finding(WARNING, "NEAR_LEAK", second, text))
    return findings


def _compete(first: Rows, second: Rows) -> bool:
    """Whether some policy has labels in both: only then has it trained on rows that it is measured on."""
    return not {name for row in first for name in row.labels}.isdisjoint(name for row in second for name in row.labels)


def _torn(group: Rows, policies: Sequence[Policy]) -> bool:
    labels = ({row.labels[policy.id] for row in group if policy.id in row.labels} for policy in policies)
    return any(len(given) > 1 for given in labels)


def _by(key: Callable[[LabelledConversation], str], rows: Rows) -> dict[str, list[LabelledConversation]]:
    groups: dict[str, list[LabelledConversation]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _letters(conversation: Conversation) -> str:
    """Digest of the words without digits and punctuation."""
    return digest(
        "\n".join(f"{m.role}:{_NOT_LETTERS.sub(' ', m.text.casefold()).strip()}" for m in conversation.messages)
    )


def _where(groups: Sequence[Sequence[LabelledConversation]]) -> str:
    shown = [" = ".join(row.where for row in group[:2]) for group in groups[:3]]
    return ", ".join(shown) + (", ..." if len(groups) > 3 else "")
