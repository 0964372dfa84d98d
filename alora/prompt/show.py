"""``alora check show=3``: rows as the base reads them, token by token, with the place where the adapter starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from alora.config.schema import Recipe
from alora.data.check import Rows
from alora.data.conversation import LabelledConversation
from alora.policy import Policy
from alora.prompt.render import Renderer
from alora.text import printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ENDS = 120  # tokens shown of each end of a long prefix
TAKEN = 40  # tokens shown of what truncation took
LONGEST = 10**9
# Colours as a terminal's codes; two of them for tokens in turn.
PREFIX, INVOCATION = ("48;5;254;30", "48;5;152;30"), ("48;5;81;30", "48;5;117;30")
SUFFIX, LABEL, LOST = ("48;5;120;30", "48;5;157;30"), ("43;1;30",), ("9;31", "9;91")


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
