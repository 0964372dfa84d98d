"""The canonical conversation: what every format of data and every request becomes, and what is rendered."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from alora.data.files import unpacked

_RETURN = re.compile(r"(?<!\\)((?:\\\\)*)\\r(?:(?:\\r)?\\n)?")  # a line end of Windows in JSON
_PRINTED = re.compile(r"\s*\[?\s*\{\s*'.{0,65536}\Z", re.DOTALL)  # an object as Python prints it, not too long


@dataclass(frozen=True)
class ToolCall:
    """A tool that the assistant calls; ``arguments`` are JSON, as :func:`canonical` writes it, or any text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One turn: a role of :data:`alora.config.schema.ROLES` and its text, which is treated as hostile.

    ``name`` is that of the tool that answers, or of the speaker.
    """

    role: str
    content: str
    name: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """The message's content, and its calls in words."""
        return "\n".join([self.content] * bool(self.content) + [f"[calls {c.name} {c.arguments}]" for c in self.calls])


@dataclass(frozen=True)
class Conversation:
    """Messages in order. ``id`` is the row's own, or where it stands (``train.jsonl:17``); ``digest`` is that of its
    words (:func:`text_digest`) where they were read once, and "" elsewhere."""

    id: str
    messages: Sequence[Message]
    digest: str = field(default="", compare=False, repr=False)

    @property
    def transcript(self) -> str:
        """Role and text of each message, a line or more each."""
        return "\n".join(f"{message.role}: {message.text}" for message in self.messages)

    def excerpt(self, length: int) -> str:
        """The transcript, or a third from its beginning and the rest from its end, which decides most verdicts."""
        text, first = self.transcript, length // 3
        return text if len(text) <= length else f"{text[:first]} [...] {text[first - length :]}"


def text_digest(conversation: Conversation) -> str:
    """Digest of a conversation's roles and words, blind to case and white space: equal for texts that read the same."""
    if conversation.digest:
        return conversation.digest
    return digest("\n".join(f"{m.role}:{' '.join(m.text.casefold().split())}" for m in conversation.messages))


def digest(text: str) -> str:
    """SHA-256 of any text, lone surrogates included."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def canonical(value: Any) -> str:
    """JSON as it is rendered: parsed where it is a text, be it dumped twice, and dumped in one form; any other text as
    it is. TypeError for what JSON has no form for (a date, bytes)."""
    try:
        held = unpacked(value, _PRINTED)
        if isinstance(held, str):
            return canonical(json.loads(held)) if held.lstrip()[:2] in ('"{', '"[') else held
        return _RETURN.sub(r"\1\\n", json.dumps(held, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, TypeError) and not isinstance(value, str):
            raise
        return str(value)


def as_row(conversation: Conversation) -> dict[str, Any]:
    """A conversation as a row that reads back as the same one."""
    messages = []
    for message in conversation.messages:
        item: dict[str, Any] = {"role": message.role, "content": message.content}
        item |= {"name": message.name} if message.name else {}
        if message.calls:
            item["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in message.calls]
        messages.append(item)
    return {"id": conversation.id, "messages": messages}
