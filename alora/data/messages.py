"""One conversation: its messages, and how to read them from a row of OpenAI's form, ShareGPT's, or two text columns."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.formats import parse_json, shortened
from alora.data.keys import MEDIA, media_of, opened, unread
from alora.findings import Findings
from alora.reading import lone_surrogate

ROLES = ("system", "user", "assistant", "tool")
ALIASES = {
    **dict.fromkeys(("human", "customer"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatbot", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
    "developer": "system",
}
_SPEAKERS = {"system": "system", **dict.fromkeys(("response", "completion", "output", "answer", "assistant"), ROLES[2])}
_SPEAKERS |= dict.fromkeys(("prompt", "instruction", "question", "user", "text"), "user")
# A time stamp before a speaker, or none: "[10:00]", "2024-05-01T10:00Z", "5/1/24, 10:00 PM -".
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d\d(?:\d\d)?)"
_TIME = r"\d{1,2}:\d\d(?:[:.,]\d{1,6}){0,2}(?:[^\S\n]?[AaPp]\.?[Mm]\.?|[ \t]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_WHEN = rf"(?:{_DATE}(?:[,T \t]{{1,2}}{_TIME})?|{_TIME}(?:,?[ \t]{_DATE})?)"
STAMP = rf"(?>(?:[\[(]{_WHEN}[\])]|{_WHEN}(?=[ \t]))[ \t]{{0,4}}(?:[-–—][ \t]{{1,4}})?)?+"
# A list of messages as Python prints it (pandas writes a cell so), or cut short: no JSON, and no text either.
_PRINTED = re.compile(r"""\s*\[\s*\{\s*['"](?:role|from|content|value)['"]\s*:""")


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
    """Messages in order. ``id`` is the row's own, or where it stands (``train.jsonl:17``)."""

    id: str
    messages: Sequence[Message]

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
    raw = _raw_messages(row, where, settings, findings)
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
    return Conversation(where if name is None else str(name), complete) if raw and len(complete) == len(raw) else None


def _raw_messages(row: dict[str, Any], where: str, settings: DataSettings, findings: Findings) -> list[Any] | None:
    """The row's messages as they stand. Columns of plain texts (``prompt,response``) are turns in that order."""
    column = settings.columns.messages
    names = [column] if column in row else column.split(",")
    missing = [name for name in names if name not in row]
    if missing:
        text = f"no column {missing[0]!r}; the row has {listed(row)}; set data.columns.messages=NAME"
        findings.add("COLUMN_MISSING", where, text)
        return None
    values = [row[name] for name in names]
    if len(names) == 1 and isinstance(value := unpacked(values[0]), list):
        return value
    if len(names) == 1 and isinstance(value, str) and (turns := spoken(value, settings.role_map)):
        return turns
    printed = len(names) == 1 and isinstance(values[0], str) and _PRINTED.match(values[0])
    texts = [(name, index, value) for index, (name, value) in enumerate(zip(names, values, strict=True)) if value]
    if column != ColumnSettings.messages and not printed and all(isinstance(value, str | None) for value in values):
        for name in {*names} - {name for name, _, _ in texts} if texts else ():
            findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
        return [
            {"role": _SPEAKERS.get(name.strip().lower(), ROLES[1 + index % 2]), "content": text}
            for name, index, text in texts
        ]
    kinds = ", ".join(f"{name!r} is {kind(value)}" for name, value in zip(names, values, strict=True))
    if printed:  # the cell is given apart, so that all such rows are one finding
        text = "messages as Python prints them, or cut short; write them as JSON, by json.dumps"
        findings.add("MESSAGES_KIND", where, text, kinds)
        return None
    hint = " as JSON, by json.dumps" if isinstance(values[0], str) else ""
    findings.add("MESSAGES_KIND", where, f'{kinds}; messages are a list of {{"role": ..., "content": ...}}{hint}')
    return None


def usual_role(name: str) -> str | None:
    """The role that ``name`` stands for without a setting."""
    known = ALIASES.get(name.lower(), name.lower())
    return known if known in ROLES else None


def role_note(name: Any, role: str) -> str:
    """The note on turns of ``name``."""
    return f"role {shortened(name)} is read as {role}"


def spoken(text: str, roles: Iterable[str]) -> list[dict[str, str]]:
    """The turns of a transcript, which open a line with one of ``roles`` and a colon, a time stamp before it or not;
    none for any other text."""
    names = "|".join(map(re.escape, roles)) or "(?!)"
    before, *parts = re.split(rf"^[ \t]*{STAMP}({names}):", text, flags=re.MULTILINE)
    if before.strip():
        return []
    return [{"role": role, "content": said.strip()} for role, said in zip(parts[::2], parts[1::2], strict=True)]


def unpacked(value: Any) -> Any:
    """A list or an object that a table's cell holds as JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


class _Reader:
    """Reads the messages of one conversation in order: a tool's answer is named by the call before it."""

    def __init__(self, settings: DataSettings, findings: Findings, where: str) -> None:
        self._settings, self._findings, self._where, self._number = settings, findings, where, 0
        self._tools: dict[str, str] = {}

    def _add(self, code: str, problem: str) -> None:
        self._findings.add(code, self._where, problem, f"message {self._number}")

    def message(self, item: Any, number: int) -> Message | None:
        self._number = number
        if not isinstance(item, dict):
            self._add("MESSAGE_KIND", f'is {kind(item)}; write {{"role": ..., "content": ...}}')
            return None
        role, content = item.get("role"), item.get("content")
        if len(item) == 2 and role in ROLES and isinstance(content, str) and lone_surrogate(content) is None:
            return Message(role, content)  # nearly every message there is
        before = self._findings.count
        role = self._role(item.get("role", item.get("from")))
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
        read = ["role" if "role" in item else "from", said, "tool_calls", "function_call", "name", *media_of(item)]
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

    def _role(self, role: Any) -> str:
        if role in ROLES:
            return role
        known = self._settings.role_map.get(role) if isinstance(role, str) else None
        known = known or (usual_role(role) if isinstance(role, str) else None)
        if known in ROLES:
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
        named = str(part.get("type")) if isinstance(part, dict) else ""
        media = any(word in named for word in MEDIA)
        carried = media_of(part) if isinstance(part, dict) else []
        said = [part] if isinstance(part, str) else [part[key] for key in ("text", "refusal") if named and key in part]
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


def listed(row: Iterable[str]) -> str:
    """The columns of a row, or other keys, for an error message."""
    return ", ".join(map(shortened, list(row)[:8])) or "no columns"


def kind(value: Any) -> str:
    """What a value is, for an error message."""
    return "missing or null" if value is None else f"{type(value).__name__} {shortened(value)}"
