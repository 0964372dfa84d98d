"""The three splits of a run: training rows, validation rows (to stop and to calibrate by), test rows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from alora.config.schema import DataSettings
from alora.conversation import Conversation, LabelledConversation, read_labelled
from alora.errors import ConfigError, DataError
from alora.policy import Policy


@dataclass(frozen=True)
class Splits:
    """Rows by use. ``test`` is empty when no test rows are given."""

    train: tuple[LabelledConversation, ...]
    validation: tuple[LabelledConversation, ...]
    test: tuple[LabelledConversation, ...] = ()


def read_splits(settings: DataSettings, policy: Policy) -> Splits:
    """Read every split that ``settings`` name; validation rows are taken from the training rows when not given.

    Raises:
        ConfigError: ``data.train`` is not set, or ``validation_share`` is not a share.
        DataError: rows that cannot be used, or a split that lacks a label of the policy.
    """
    if settings.train is None:
        raise ConfigError("no training rows: set data.train=FILE (JSONL or Parquet) or data.train=hub:NAME")
    train = read_labelled(settings.train, settings, policy)
    if settings.validation is not None:
        validation = read_labelled(settings.validation, settings, policy)
    else:
        train, validation = hold_out(train, settings.validation_share)
    test = read_labelled(settings.test, settings, policy) if settings.test is not None else []
    for name, rows in (("train", train), ("validation", validation)):
        _require_labels(name, rows, policy)
    return Splits(tuple(train), tuple(validation), tuple(test))


def text_digest(conversation: Conversation) -> str:
    """Digest of a conversation's roles and words, blind to case and white space: equal for what reads the same."""
    lines = [f"{m.role}:{' '.join(m.content.casefold().split())}" for m in conversation.messages]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def rows_digest(rows: Sequence[LabelledConversation]) -> str:
    """Digest of rows in their order, to tell whether a run's data has changed."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr((row.conversation.messages, sorted(row.labels.items()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def hold_out(
    rows: Sequence[LabelledConversation], share: float
) -> tuple[list[LabelledConversation], list[LabelledConversation]]:
    """Split by a hash of the text, so that duplicates stay on one side and a new row moves no other."""
    if not 0 < share < 1:
        raise ConfigError(f"data.validation_share={share} must lie between 0 and 1")
    train, validation = [], []
    for row in rows:
        place = int(text_digest(row.conversation)[:8], 16) / 2**32
        (validation if place < share else train).append(row)
    return train, validation


def _require_labels(name: str, rows: Sequence[LabelledConversation], policy: Policy) -> None:
    found = {row.labels[policy.id] for row in rows if policy.id in row.labels}
    missing = [label for label in policy.labels if label not in found]
    if missing:
        raise DataError(
            f"the {name} rows ({len(rows)}) hold no {' and no '.join(map(repr, missing))} of policy {policy.id!r}; "
            "a classifier needs rows of every label: add some, or set data.validation_share higher"
        )
