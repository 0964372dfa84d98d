"""Check that every row renders to one activation, at the end of its prefix, and fits the base; count its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from alora.activation import last_occurrence
from alora.config.schema import PromptSettings
from alora.data.conversation import LabelledConversation
from alora.data.findings import WARNING, Finding, Findings
from alora.errors import RenderError
from alora.policy import Policy
from alora.prompt.render import Renderer, cut_from

MOST_GUTTED = 0.05  # of a split's rows that lose more than half of their text
IN_RECIPE = "lower prompt.max_prefix_tokens to {tokens}"


@dataclass(frozen=True)
class TokenLengths:
    """Whole prompts of one split in tokens; what truncation takes: rows, and prefix tokens before and lost; and in how
    many windows its rows are read, one for a row that fits."""

    median: int
    p95: int
    longest: int
    truncated_rows: int
    prefix_tokens: int
    lost_tokens: int
    windows: int


def check_prompts(
    name: str, rows: Iterable[LabelledConversation], policies: Sequence[Policy], renderer: Renderer, longest_input: int
) -> tuple[TokenLengths, list[Finding]]:
    """Render every row for each of ``policies`` that it is labelled for: one activation, at the end of the prefix, also
    after truncation; and count the tokens, of its longest prompt.

    ``longest_input`` is the most tokens that the base takes. Rows to train on are one prefix each, others what a
    verdict reads.
    """
    suffixes = {policy.id: renderer.suffix(policy) for policy in policies}
    longest_suffix = max(len(suffix.token_ids) for suffix in suffixes.values())
    findings = Findings()
    lengths: list[int] = []
    cut: list[tuple[int, int, str]] = []
    prefix_tokens = windows = 0
    for row in rows:
        wanted = [suffixes[policy] for policy in row.labels if policy in suffixes]
        if not wanted:
            continue
        try:
            conversation = row.conversation
            prefixes = [renderer.prefix(conversation)] if name == "train" else renderer.windows(conversation)
        except RenderError as error:
            findings.add("NOT_RENDERED", row.where, str(error))
            continue
        for prefix in prefixes:
            starts = {last_occurrence(prefix.token_ids + suffix.token_ids, suffix.invocation_ids) for suffix in wanted}
            for start in starts - {len(prefix.token_ids)}:
                text = f"the adapter would start at token {start}, not at {len(prefix.token_ids)}; please report this"
                findings.add("ACTIVATION", row.where, text)
        longest = max(len(prefix.token_ids) for prefix in prefixes) + max(len(suffix.token_ids) for suffix in wanted)
        if longest > longest_input:
            findings.add("PROMPT_TOO_LONG", row.where, too_long(longest, longest_input, longest_suffix))
        lengths.append(longest)
        windows += len(prefixes)
        truncation = next(filter(None, (prefix.truncation for prefix in prefixes)), None)
        prefix_tokens += truncation.tokens_before if truncation else sum(len(prefix.token_ids) for prefix in prefixes)
        if truncation:
            cut.append((truncation.tokens_before - truncation.tokens_after, truncation.tokens_before, row.where))
    lost = sum(tokens for tokens, _, _ in cut)
    start = _truncation(name, cut, len(lengths), renderer.settings) if cut else []
    ordered = sorted(lengths) or [0]
    median, p95 = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.95))
    found = TokenLengths(median, p95, ordered[-1], len(cut), prefix_tokens, lost, windows)
    return found, [*findings.all(), *start]


def _truncation(name: str, cut: list[tuple[int, int, str]], rows: int, settings: PromptSettings) -> list[Finding]:
    """What is cut, as (tokens lost, tokens before, where), and what to do where too many rows lose most of it."""
    _, whole, where = max(cut)
    gutted = sum(2 * tokens > before for tokens, before, _ in cut)
    windows, taken_from = settings.truncation == "windows", cut_from(settings)
    text = (
        f"{len(cut)} {'row is' if len(cut) == 1 else 'rows are'} cut from the {taken_from} to fit "
        f"prompt.max_prefix_tokens={settings.max_prefix_tokens}, a loss of {sum(tokens for tokens, _, _ in cut)} "
        f"tokens in all (the longest, {where}, has {whole}); raise it if the base and the memory allow"
    )
    if windows and name == "train":
        text = f"in training alone, where the label may be of what is lost: {text}; verdicts read all of it in windows"
    if windows or gutted <= MOST_GUTTED * rows:
        return [Finding(WARNING, "TRUNCATED", name, text)]
    choices = (
        "or score all of it with prompt.truncation=windows, keep the end with prompt.truncation=start, split long "
        "conversations into rows, or leave them out"
    )
    return [Finding(WARNING, "TRUNCATED_MOST", name, f"{gutted} of {rows} rows lose more than half: {text}, {choices}")]


def too_long(tokens: int, limit: int, suffix: int, remedy: str = IN_RECIPE) -> str:
    """What is wrong with a prompt of ``tokens`` where the base takes ``limit``, and the remedy."""
    if limit <= suffix:
        return f"the prompt has {tokens} tokens, the base takes {limit}: too few for any conversation; choose another"
    return f"the prompt has {tokens} tokens, the base takes {limit}; {remedy.format(tokens=limit - suffix)}"
