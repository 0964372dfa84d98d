"""One conversation: its messages, and how to read them from a row's, of OpenAI's form, ShareGPT's, or plain texts."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from alora.config.schema import DataSettings
from alora.data.cells import (
    GATHER,
    ROLES,
    STAYS_ONE,
    STAYS_WITHIN,
    key_of,
    kind,
    listed,
    named_columns,
    raw_messages,
    role_note,
    role_of,
    unpacked,
    unsplit_speakers,
)
from alora.data.formats import shortened
from alora.data.keys import MEDIA, media_of, opened, unread
from alora.findings import Findings
from alora.reading import lone_surrogate

_CONVERSATION_ID = re.compile("(conversation|dialog|dialogue|chat|thread|ticket)[_ ]?id", re.IGNORECASE)


@dataclass(frozen=True)
class ToolCall:
    """A tool that the assistant calls; ``arguments`` are JSON, as a text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """One turn: a role of :data:`ROLES` and its text, which is treated as hostile.

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
    """Messages in order. ``id`` is the row's own, or where it stands (``train.jsonl:17``).

    ``unsplit`` are speakers of ``data.role_map`` whose turns are within other messages of a transcript; ``by_column``
    says that each message is a column's text, which no speaker splits.
    """

    id: str
    messages: Sequence[Message]
    unsplit: Sequence[str] = field(default=(), compare=False, repr=False)  # no part of what a digest is of
    by_column: bool = field(default=False, compare=False, repr=False)

    @property
    def transcript(self) -> str:
        """Role and text of each message, a line or more each."""
        return "\n".join(f"{message.role}: {message.text}" for message in self.messages)

    def excerpt(self, length: int) -> str:
        """The transcript, or a third from its beginning and the rest from its end, which decides most verdicts."""
        text, first = self.transcript, length // 3
        return text if len(text) <= length else f"{text[:first]} [...] {text[first - length :]}"


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


def conversation_of(row: Any, where: str, settings: DataSettings, findings: Findings) -> Conversation | None:
    """The conversation in one row; None where something is wrong with it; ``findings`` says what."""
    columns = settings.columns
    if not isinstance(row, dict):
        findings.add("ROW_KIND", where, f"a row is an object with {columns.messages!r}, not {kind(row)}")
        return None
    raw = raw_messages(row, where, settings, findings)
    reader = _Reader(settings, findings, where)
    messages = [reader.message(item, number) for number, item in enumerate(raw or [], 1)]
    empty = raw is not None and all(message is not None and not message.text.strip() for message in messages)
    if empty and settings.skip_empty:
        findings.notes["a row without any text is left out (data.skip_empty)"] += 1
        return None
    if empty:
        problem = (
            "every message is empty; give it a text"
            if raw
            else f"{columns.messages!r} is empty; give it at least one message"
        )
        findings.add("EMPTY", where, f"{problem}, or leave it out (of labelled rows: data.skip_empty=true)")
    name = row.get(columns.id)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        findings.add("ID_KIND", where, f"{columns.id!r} is {kind(name)}; an id is a text or a number")
    elif isinstance(name, str) and lone_surrogate(name) is not None:
        findings.add("NOT_UNICODE", where, f"{columns.id!r} holds a lone surrogate, which is not Unicode text")
    complete = tuple(message for message in messages if message is not None)
    if not raw or len(complete) < len(raw):
        return None
    text, speaking = row.get(columns.messages, ""), dict[str, None]()  # none of its own where texts have columns each
    whole = [message.content for message in complete] == [text]
    if isinstance(text, str) and settings.role_map and not isinstance(unpacked(text), list):
        speakers = [name for name in settings.role_map if name not in columns.messages.split(",")]
        speaking |= dict.fromkeys(it for m in complete for it in unsplit_speakers(m.content, speakers))
        findings.notes.update([STAYS_ONE if whole else STAYS_WITHIN] * bool(speaking))
    complete = reader.system_first(row, complete)
    return Conversation(where if name is None else str(name), complete, tuple(speaking), columns.messages not in row)


class _Reader:
    """Reads the messages of one conversation in order: a tool's answer is named by the call before it."""

    def __init__(self, settings: DataSettings, findings: Findings, where: str) -> None:
        self._settings, self._findings, self._where, self._number = settings, findings, where, 0
        self._tools: dict[str, str] = {}
        self._whose: dict[str, str] = {}

    def _add(self, code: str, problem: str) -> None:
        self._findings.add(code, self._where, problem, f"message {self._number}" if self._number else "'system'")

    def system_first(self, row: dict[str, Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages behind the row's ``system``, where Anthropic, Bedrock and LLaMA-Factory have it."""
        columns = self._settings.columns
        names = [name for name in row if isinstance(name, str) and key_of(name) == "system" and row[name]]
        name = "system" if "system" in names or not names else names[0]
        system = row.get(name)
        if isinstance(parts := unpacked(system), list):
            system = parts
        if not system or name in named_columns(columns):
            return messages
        if not isinstance(system, str | list):
            self._findings.notes[f"{name!r} is not read: it is no text"] += 1
            return messages
        first = self.message({"role": "system", "content": system}, 0)
        own = [message.text.strip() for message in messages if message.role == "system"]
        if first is None or not first.text.strip() or first.text.strip() in own:
            return messages
        if own:
            text = f"{name!r} differs from the system message in {columns.messages!r}"
            self._findings.add("SYSTEM_DIFFERS", self._where, f"{text}; remove one of them, or rename the column")
            return messages
        self._findings.notes[f"{name!r} is read as the first message, before {columns.messages!r}"] += 1
        return (first, *messages)

    def message(self, item: Any, number: int) -> Message | None:
        self._number = number
        if not isinstance(item, dict):
            self._add("MESSAGE_KIND", f'is {kind(item)}; write {{"role": ..., "content": ...}}')
            return None
        role, content = item.get("role"), item.get("content")
        if len(item) == 2 and role in ROLES and isinstance(content, str) and lone_surrogate(content) is None:
            return Message(role, content)  # nearly every message there is
        before = self._findings.count
        self._of_one_conversation(item)
        who = next((key for key in ("role", "from") if item.get(key) is not None), "role")
        role = self._role(item.get(who))
        given = [
            call
            for key in ("tool_calls", "function_call")
            if item.get(key)
            for call in (item[key] if isinstance(item[key], list) else [item[key]])
        ]
        calls = self._calls(given)
        # OpenAI's, ShareGPT's, and that of a model that refuses
        said = next((key for key in ("content", "value", "refusal") if item.get(key) is not None), "content")
        content = self._content(item.get(said), role, bool(given))
        read = [who, said, "tool_calls", "function_call", "name", *media_of(item)]
        if isinstance(refusal := item.get("refusal"), str):
            read.append("refusal")
            content = f"{content}\n{refusal}".strip("\n") if refusal and refusal != content else content
        self._left_out([*media_of(item), *unread(item, *read)])
        name = item.get("name") or self._tools.get(str(item.get("tool_call_id", ""))) or ""
        texts = [content, name, *(text for call in calls for text in (call.name, call.arguments))]
        for text in texts:
            if not isinstance(text, str):
                self._add("CONTENT_KIND", f"name is {kind(text)}; it must be a text")
            elif (surrogate := lone_surrogate(text)) is not None:
                problem = f"content has a lone surrogate at character {surrogate}, which is not Unicode text"
                self._add("NOT_UNICODE", problem)
        return Message(role, content, name, calls) if self._findings.count == before else None

    def _of_one_conversation(self, item: dict[Any, Any]) -> None:
        """Refuse a list of the messages of several, as a table of one message a row becomes."""
        for key, value in item.items():
            named = isinstance(key, str) and _CONVERSATION_ID.fullmatch(key) and isinstance(value, str | int)
            if named and self._whose.setdefault(key, str(value)) != str(value):
                self._add("MESSAGES_KIND", f"{shortened(key)} is {shortened(value)}, and another before; {GATHER}")

    def _role(self, role: Any) -> str:
        known = role_of(role, self._settings.role_map) if isinstance(role, str) else None
        if known in ROLES:
            if known != role:
                self._findings.notes[role_note(role, known)] += 1
            return known
        text = f"role is {kind(role)}, not one of {', '.join(ROLES)} (of rows: data.role_map={{ROLE: user}} maps it)"
        self._add("ROLE_UNKNOWN", text)
        return ""

    def _content(self, content: Any, role: str, optional: bool) -> str:
        if isinstance(content, str):
            return content
        if content is None and optional:
            return ""
        if isinstance(content, list):
            return "\n".join(text for part in content if (text := self._part(part)))
        if role == "tool" and isinstance(content, dict):
            return self._json(content)
        self._add("CONTENT_KIND", f"content is {kind(content)}; it must be a text")
        return ""

    def _part(self, part: Any) -> str:
        if isinstance(part, dict):  # a table gives all parts the same keys
            part = {key: value for key, value in part.items() if value is not None}
        named = str(part["type"]) if isinstance(part, dict) and part.get("type") else ""
        media = any(word in named for word in MEDIA)
        carried = media_of(part) if isinstance(part, dict) else []
        texts = [part[key] for key in ("text", "refusal") if key in part] if isinstance(part, dict) else []
        said = [part] if isinstance(part, str) else texts
        readable = not media and (self._settings.skip_media or not carried)
        if readable and said and all(isinstance(text, str) for text in said):
            self._left_out(unread(part, "type", "text", "refusal", *carried) if isinstance(part, dict) else [])
            return "\n".join(said)
        what = f"a part of type {shortened(named)}" if named else kind(part)
        what += f" with {shortened(carried[0])}" if carried and not media else ""
        if media or carried:
            self._media(what)
        else:
            self._add("CONTENT_PART", f"content holds {what}, and alora reads text; give it as a text")
        return ""

    def _left_out(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._media(f"{shortened(key)} next to its text")

    def _media(self, what: str) -> None:
        """Refuse it, or leave it out where the user chose that."""
        if self._settings.skip_media:
            self._findings.notes[f"{what} is left out (data.skip_media)"] += 1
        else:
            remedy = "leave it out (of rows: data.skip_media=true)"
            self._add("CONTENT_PART", f"content holds {what}, and alora reads text; {remedy}")

    def _json(self, value: Any) -> str:
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:  # a Parquet column may hold dates, decimals and bytes
            self._add("CONTENT_KIND", f"holds {kind(value)}, which JSON has no form for; give it as a text")
            return ""

    def _calls(self, given: Sequence[Any]) -> tuple[ToolCall, ...]:
        calls = []
        for call in given:
            function, arguments, lost = opened(call)
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not name:
                text = f'a tool call is {kind(call)}; write {{"function": {{"name": ..., "arguments": ...}}}}'
                self._add("TOOL_CALL", text)
                continue
            if lost:
                self._add("TOOL_CALL", f"a tool call has {listed(lost)} next to its arguments; make it one of them")
            packed = arguments if isinstance(arguments, str) else self._json(arguments or {})
            calls.append(ToolCall(name, packed))
            if call.get("id"):
                self._tools[str(call["id"])] = name
        return tuple(calls)
