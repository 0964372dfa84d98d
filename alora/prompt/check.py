"""Check that every row renders to one activation, at the end of its prefix, and fits the base; count its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from alora.activation import last_occurrence
from alora.data.check import ERROR, WARNING, Finding
from alora.data.conversation import LabelledConversation
from alora.errors import RenderError
from alora.findings import SHOWN
from alora.policy import Policy
from alora.prompt.render import Renderer

IN_RECIPE = "lower prompt.max_prefix_tokens to {tokens}"


@dataclass(frozen=True)
class TokenLengths:
    """Whole prompts of one split in tokens, and what truncation takes: rows, and prefix tokens before and lost."""

    median: int
    p95: int
    longest: int
    truncated_rows: int
    prefix_tokens: int
    lost_tokens: int


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
