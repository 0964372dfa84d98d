"""Conversations and their labels: the typed rows, and the readers of JSONL, Parquet and hub data sets."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """One turn: a role of :data:`ROLES` and its text, which is hostile until proven otherwise."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """Messages in order. ``id`` is the row's own, or its place in the file."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class LabelledConversation:
    """A conversation with one label per policy that it was labelled for; ``where`` is its place (``train.jsonl:17``)."""

    conversation: Conversation
    labels: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
