"""Golden rows: conversations with the adapter's label logits, which it must give again wherever it runs.

The conversations are :mod:`alora.data.probes`, not rows of the user's data: a bundle is made to be published, and the
data may be private.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from alora.data.messages import Conversation, Message, as_row
from alora.errors import BundleError
from alora.prompt.render import Prefix, Suffix
from alora.received import DAMAGED, decode, refused
from alora.text import read_whole

if TYPE_CHECKING:
    from alora.prefix.scorer import Scorer
    from alora.prompt.render import Renderer

# Of a log-probability over the labels; relative above 1. float32: sums in another order, over a model's depth.
# bfloat16: a logit between 16 and 32 has steps of 0.125, and two of them make a difference.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.05, "float64": 1e-3}


@dataclass(frozen=True)
class GoldenRow:
    """One line of ``golden.jsonl``: a conversation, the sha256 of its prefix's token ids, and one logit per label
    (float32 values)."""

    id: str
    messages: tuple[Message, ...]
    prefix_sha256: str
    label_logits: tuple[float, ...]

    @property
    def conversation(self) -> Conversation:
        return Conversation(self.id, self.messages)


def prefix_digest(prefix: Prefix) -> str:
    """sha256 of a prefix's token ids."""
    return hashlib.sha256(json.dumps(list(prefix.token_ids)).encode()).hexdigest()


def measure(
    scorer: Scorer, renderer: Renderer, suffix: Suffix, conversations: Sequence[Conversation]
) -> tuple[GoldenRow, ...]:
    """Label logits of the scorer's one adapter on each conversation."""
    rows = []
    for conversation in conversations:
        prefix = renderer.prefix(conversation)
        (logits_L,) = scorer.label_logits(prefix, [suffix])
        logits_L = tuple(float(logit) for logit in logits_L)
        rows.append(GoldenRow(conversation.id, tuple(conversation.messages), prefix_digest(prefix), logits_L))
    return tuple(rows)


def largest_difference(rows: Sequence[GoldenRow], again: Sequence[GoldenRow]) -> float:
    """Largest difference of two measurements of the same rows: absolute, relative for logits above 1.

    Infinite when a logit is not a number.
    """
    differences = [
        abs(before - after) / max(1.0, abs(before))
        for row, repeat in zip(rows, again, strict=True)
        for before, after in zip(row.label_logits, repeat.label_logits, strict=True)
    ]
    return math.inf if any(map(math.isnan, differences)) else max(differences, default=0.0)


def tolerance(dtype: str, stored_dtype: str) -> float:
    """The coarser of the two dtypes' tolerances."""
    return max(TOLERANCES[dtype], TOLERANCES[stored_dtype])


def disagreement(rows: Sequence[GoldenRow], logits_NL: Sequence[Sequence[float]]) -> float:
    """:func:`largest_difference` of golden rows from an engine's answers, which may be known up to a constant alone."""
    again = [replace(row, label_logits=tuple(logits_L)) for row, logits_L in zip(rows, logits_NL, strict=True)]
    return largest_difference(normalised(rows), normalised(again))


def normalised(rows: Sequence[GoldenRow]) -> list[GoldenRow]:
    """Golden rows with log-probabilities over their labels instead of logits, which engines know up to a constant."""
    return [replace(row, label_logits=tuple(_log_softmax(row.label_logits))) for row in rows]


def _log_softmax(logits_L: Sequence[float]) -> tuple[float, ...]:
    peak = max(logits_L)
    total = peak + math.log(sum(math.exp(logit - peak) for logit in logits_L))
    return tuple(logit - total for logit in logits_L)


def write_golden(file: Path, rows: Sequence[GoldenRow]) -> None:
    """Write ``golden.jsonl``; floats keep every bit."""
    lines = [vars(row) | {"messages": as_row(row.conversation)["messages"]} for row in rows]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_golden(file: Path) -> tuple[GoldenRow, ...]:
    """Read ``golden.jsonl``; BundleError where a line is not a golden row."""
    rows, number = list[GoldenRow](), 0
    try:
        for number, line in enumerate(read_whole(file).splitlines(), start=1):  # noqa: B007 the error names it
            rows.append(decode(GoldenRow, json.loads(line)))
    except (OSError, ValueError, TypeError) as error:
        raise refused(
            BundleError, DAMAGED, f"{file}:{number}: not a golden row ({error}); export the bundle again"
        ) from error
    return tuple(rows)
