"""Check that every row renders to one activation, at the end of its prefix, and fits the base; count its tokens. And
``alora check show=3``: rows as the base reads them, token by token, with the place where the adapter starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from alora.activation import last_occurrence
from alora.config.schema import PromptSettings, Recipe
from alora.data.conversation import LabelledConversation
from alora.data.findings import WARNING, Finding, Findings
from alora.data.row_checks import Rows
from alora.errors import RenderError
from alora.policy import Policy
from alora.prompt.render import Renderer, cut_from
from alora.text import printable

MOST_GUTTED = 0.05  # of a split's rows that lose more than half of their text
ENDS = 120  # tokens shown of each end of a long prefix
TAKEN = 40  # tokens shown of what truncation took
LONGEST = 10**9
# Colours as a terminal's codes; two of them for tokens in turn.
PREFIX, INVOCATION = ("48;5;254;30", "48;5;152;30"), ("48;5;81;30", "48;5;117;30")
SUFFIX, LABEL, LOST = ("48;5;120;30", "48;5;157;30"), ("43;1;30",), ("9;31", "9;91")
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


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def show_rows(
    recipe: Recipe, splits: dict[str, Rows], policies: Sequence[Policy], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Print ``recipe.show`` rows, of each label in turn, each for the first policy that it is labelled for."""
    renderer = Renderer(tokenizer, recipe.prompt, recipe.base.template_kwargs)
    whole = Renderer(tokenizer, replace(recipe.prompt, max_prefix_tokens=LONGEST), recipe.base.template_kwargs)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    rows = [row for members in splits.values() for row in members]
    for row, policy in _chosen(rows, policies, recipe.show):
        prefix, suffix = renderer.prefix(row.conversation), renderer.suffix(policy)
        label = row.labels[policy.id]
        invocation = len(suffix.invocation_ids)
        where = f"{row.where}: {policy.id} is {label!r}; the adapter starts at index {len(prefix.token_ids)}"
        sys.stdout.write(f"{printable(where)}\n")
        texts = _texts(tokenizer, prefix.token_ids)
        more = len(texts) - 2 * ENDS
        shown = [*texts[:ENDS], f"[{more} tokens not shown]", *texts[-ENDS:]] if more > 0 else texts
        _paint("prefix, the base alone", shown, PREFIX, colour)
        if prefix.truncation:
            lost = _taken(whole.prefix(row.conversation).token_ids, prefix.token_ids)
            counts = f"{len(lost)} of {prefix.truncation.tokens_before} tokens"
            _paint(f"taken by truncation, {counts}", _texts(tokenizer, lost[:TAKEN]), LOST, colour)
        _paint("invocation tokens", _texts(tokenizer, suffix.invocation_ids), INVOCATION, colour)
        _paint("rest of the suffix", _texts(tokenizer, suffix.token_ids[invocation:]), SUFFIX, colour)
        answer = suffix.label_token_ids[policy.label_index(label)]
        _paint(f"label token, id {answer}", _texts(tokenizer, [answer]), LABEL, colour)
        sys.stdout.write("\n")


def _chosen(
    rows: Sequence[LabelledConversation], policies: Sequence[Policy], count: int
) -> list[tuple[LabelledConversation, Policy]]:
    """Rows of each label in turn, so that three show more than one."""
    piles: dict[tuple[str, str], list[tuple[LabelledConversation, Policy]]] = {}
    for row in rows:
        if policy := next((policy for policy in policies if policy.id in row.labels), None):
            piles.setdefault((policy.id, row.labels[policy.id]), []).append((row, policy))
    return [pair for layer in zip_longest(*piles.values()) for pair in layer if pair is not None][:count]


def _taken(whole: Sequence[int], kept: Sequence[int]) -> Sequence[int]:
    """What stands in ``whole`` between the two ends that it has in common with ``kept``."""
    least = min(len(whole), len(kept))
    head = next((i for i in range(least) if whole[i] != kept[i]), least)
    tail = next((i for i in range(least - head) if whole[-1 - i] != kept[-1 - i]), least - head)
    return whole[head : len(whole) - tail]


def _texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    return [str(tokenizer.decode([index])) for index in ids]


def _paint(title: str, texts: Sequence[str], colours: Sequence[str], colour: bool) -> None:
    """One line or several: tokens in alternating colours on a terminal, between bars elsewhere."""
    plain = [printable(text).replace("\n", "\\n") for text in texts]
    painted = (f"\x1b[{colours[index % len(colours)]}m{text}\x1b[0m" for index, text in enumerate(plain))
    sys.stdout.write(f"  {title}:\n  {''.join(painted) if colour else '|'.join(plain)}\n")
