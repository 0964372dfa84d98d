"""What can be known about rows before any money is spent: labels, duplicates, leakage, tokens. Pure, no printing."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from alora.activation import last_occurrence
from alora.conversation import Conversation, LabelledConversation
from alora.errors import RenderError
from alora.findings import SHOWN
from alora.policy import Policy
from alora.render import Renderer
from alora.splits import LEAST_ROWS, text_digest, too_few

ERROR, WARNING = "error", "warning"
FEW_ROWS = 8  # of one label: below this a metric is noise
RARE_SHARE = 0.05
IN_RECIPE = "lower prompt.max_prefix_tokens to {tokens}"
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


@dataclass(frozen=True)
class TokenLengths:
    """Whole prompts of one split in tokens, and what truncation takes: rows, and prefix tokens before and lost."""

    median: int
    p95: int
    longest: int
    truncated_rows: int
    prefix_tokens: int
    lost_tokens: int


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

    Sameness is blind to case and white space (:func:`alora.splits.text_digest`). Across splits, rows that differ in
    digits and punctuation only are told as well: templates leak that way.
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


def check_prompts(
    name: str, rows: Iterable[LabelledConversation], policies: Sequence[Policy], renderer: Renderer, longest_input: int
) -> tuple[TokenLengths, list[Finding]]:
    """Render every row for each of ``policies`` that it is labelled for: one activation, at the end of the prefix, also
    after truncation; and count the tokens, of its longest prompt.

    ``longest_input`` is the most tokens that the base takes.
    """
    suffixes = {policy.id: renderer.suffix(policy) for policy in policies}
    longest_suffix = max(len(suffix.token_ids) for suffix in suffixes.values())
    findings: list[Finding] = []
    lengths: list[int] = []
    cut: list[tuple[int, int, str]] = []
    prefix_tokens = 0
    for row in rows:
        wanted = [suffixes[policy] for policy in row.labels if policy in suffixes]
        if not wanted:
            continue
        try:
            prefix = renderer.prefix(row.conversation)
        except RenderError as error:
            findings.append(Finding(ERROR, row.where, str(error)))
            continue
        starts = {last_occurrence(prefix.token_ids + suffix.token_ids, suffix.invocation_ids) for suffix in wanted}
        for found in starts - {len(prefix.token_ids)}:
            text = f"the adapter would start at token {found}, not at {len(prefix.token_ids)}; please report this"
            findings.append(Finding(ERROR, row.where, text))
        longest = len(prefix.token_ids) + max(len(suffix.token_ids) for suffix in wanted)
        if longest > longest_input:
            text = too_long(longest, longest_input, longest_suffix)
            findings.append(Finding(ERROR, row.where, text))
        lengths.append(longest)
        truncation = prefix.truncation
        prefix_tokens += truncation.tokens_before if truncation else len(prefix.token_ids)
        if truncation:
            cut.append((truncation.tokens_before - truncation.tokens_after, truncation.tokens_before, row.where))
    lost = sum(tokens for tokens, _, _ in cut)
    if cut:
        _, whole, where = max(cut)
        text = (
            f"{len(cut)} rows are cut from the {renderer.settings.truncation} to fit "
            f"prompt.max_prefix_tokens={renderer.settings.max_prefix_tokens} and lose {lost} tokens in all "
            f"(the longest, {where}, has {whole}); raise it if the base and the memory allow"
        )
        findings.append(Finding(WARNING, name, text))
    return _token_lengths(lengths, len(cut), prefix_tokens, lost), _few(name, findings)


def too_long(tokens: int, limit: int, suffix: int, remedy: str = IN_RECIPE) -> str:
    """What is wrong with a prompt of ``tokens`` where the base takes ``limit``, and the remedy."""
    if limit <= suffix:
        return f"the prompt has {tokens} tokens, the base takes {limit}: too few for any conversation; choose another"
    return f"the prompt has {tokens} tokens, the base takes {limit}; {remedy.format(tokens=limit - suffix)}"


def _token_lengths(lengths: list[int], truncated: int, prefix_tokens: int, lost: int) -> TokenLengths:
    ordered = sorted(lengths) or [0]

    def quantile(share: float) -> int:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return TokenLengths(quantile(0.5), quantile(0.95), ordered[-1], truncated, prefix_tokens, lost)


def _few(name: str, findings: list[Finding]) -> list[Finding]:
    """The first errors in full, the rest as a count."""
    errors = [finding for finding in findings if finding.severity == ERROR]
    more = len(errors) - SHOWN
    rest = [Finding(ERROR, name, f"... and {more} more rows with errors", more)] if more > 0 else []
    return [*errors[:SHOWN], *rest, *(finding for finding in findings if finding.severity != ERROR)]


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
