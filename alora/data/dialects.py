"""The items of a conversation as canonical messages: OpenAI's, Responses', Anthropic's, ShareGPT's, LangChain's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alora.config.schema import ROLES, DataSettings
from alora.data.files import kind, listed, shortened, unpacked
from alora.data.findings import Findings
from alora.data.messages import Message, ToolCall, canonical
from alora.data.roles import role_note, role_of, usual_role
from alora.text import lone_surrogate

CALLS = ("function_call", "custom_tool_call")  # types of Responses' items
ANSWERS = ("function_call_output", "custom_tool_call_output")
_PLAIN = ("user", "assistant", "system")
_WHO, _SAID = ("role", "from", "speaker", "sender", "author"), ("content", "value", "refusal", "text", "parts")
_CALLING = ("function_call", "tool_call")  # who calls, in ShareGPT
_REASONING = ("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details")
_THOUGHT = ("thinking", "redacted_thinking", "reasoning")  # types of parts
_THINK = re.compile(r"\s*<(think|thinking)>(.*?)</\1>\s*", re.DOTALL)
_ARGUMENTS = ("arguments", "args", "input", "parameters")  # OpenAI's, LangChain's, Anthropic's and Llama's
MEDIA = ("image", "audio", "video", "file", "document")
# What SDKs and logs put next to a text, and no model reads.
_KNOWN = frozenset(
    (
        *("annotations", "citations", "logprobs", "parsed", "parsed_arguments"),
        *("id", "index", "model", "object", "phase", "status", "type", "uuid"),  # and every ..._id and ...Id
        *("created", "created_at", "createdAt", "date", "datetime", "timestamp", "updated_at", "updatedAt"),
        *("lang", "language", "locale", "metadata", "sender"),
        *("async", "caller", "namespace", "toolset_name"),
        *("cache_control", "prompt_cache_breakpoint", "response_metadata", "usage", "usage_metadata"),
        *("finish_reason", "stop_reason", "stop_sequence"),
        # Gemini's and Anthropic's opaque state, which a client sends back as it came.
        *("container", "extra_content", "provider_specific_fields", "providerOptions"),
        *("signature", "thought_signature"),
    )
)
IN_TAGS, IN_FIELDS = "reasoning in <think> tags", "reasoning next to the text"


class Items:
    """Reads the items of one conversation in order: calls join their turn, and an answer has the name of its call."""

    def __init__(self, settings: DataSettings, findings: Findings, where: str) -> None:
        self._settings, self._findings, self._where, self._part = settings, findings, where, ""
        self.messages: list[Message] = []
        self._open: list[tuple[str, str]] = []  # calls without an answer: id and name

    def read(self, items: Sequence[Any], of: str = "message") -> None:
        """Add the messages of ``items``; what is wrong with one goes to the findings."""
        for number, item in enumerate(items, 1):
            self._part = f"{of} {number}" if of == "message" else of
            self._item(item)
        self._part = ""

    def _item(self, item: Any) -> None:
        if not isinstance(item, dict):
            self._add("MESSAGE_KIND", f'is {kind(item)}; write {{"role": ..., "content": ...}}')
        elif len(item) == 2 and item.get("role") in _PLAIN and isinstance(item.get("content"), str):
            self._thought(item["role"], item["content"])  # nearly every message there is
        elif (typed := item.get("type")) in CALLS:
            self._say("assistant", "", calls=self._calls([{"id": item.get("call_id"), "function": item}]))
        elif typed in ANSWERS:
            self._lost(unread(item, "output"))
            self._answer(item.get("output"), item.get("call_id"), item.get("name"))
        elif typed == "reasoning" and "role" not in item:
            self._thought("assistant", "", _words(item.get("summary") or item.get("content")) or " ")
        elif isinstance(typed, str) and usual_role(typed) and isinstance(item.get("data"), dict):
            self._turn({"type": typed, **item["data"]})  # LangChain's, dumped
        elif isinstance(typed, str) and typed != "message" and not usual_role(typed) and not _named(item):
            self._media(f"an item of type {shortened(typed)}")
        else:
            self._turn(item)

    def _turn(self, item: dict[Any, Any]) -> None:
        who = _named(item) or ("type" if isinstance(item.get("type"), str) and usual_role(item["type"]) else "role")
        said = next((key for key in _SAID if item.get(key) is not None), "content")
        calling = who == "from" and item[who] in _CALLING
        role = "assistant" if calling else self._role(item.get(who))
        given = [call for key in ("tool_calls", "function_call") for call in _listed(item.get(key) or [])]
        if calling and isinstance(packed := unpacked(item.get(said)), dict | list):
            given, item = _listed(packed), {**item, said: None}
        thoughts = [key for key in _REASONING if role == "assistant" and item.get(key)]
        read = [who, said, "tool_calls", "function_call", "name", *thoughts, *media_of(item)]
        refusal = item.get("refusal")
        self._lost([*media_of(item), *unread(item, *read, *["refusal"] * isinstance(refusal, str))])
        calls, content, thought = self._calls(given), item.get(said), "\n".join(_words(item[key]) for key in thoughts)
        name = item.get("name") or ""
        if not isinstance(name, str):
            self._add("CONTENT_KIND", f"name is {kind(name)}; it must be a text")
        elif role == "tool" and content is not None:
            self._answer(content, item.get("tool_call_id"), name)
        elif isinstance(content, list):
            self._blocks(role, content, name, calls, thought)
        elif isinstance(content, str):
            more = f"\n{refusal}" if refusal and isinstance(refusal, str) and refusal != content else ""
            self._thought(role, f"{content}{more}".strip("\n") if more else content, thought, name, calls)
        elif content is None and (given or thought):
            self._thought(role, "", thought, name, calls)
        elif content is None and said in item:
            self._findings.notes["a turn without content (null) is left out"] += 1
        else:
            self._add("CONTENT_KIND", f"content is {kind(content)}; it must be a text")

    def _blocks(self, role: str, parts: list[Any], name: str, calls: tuple[ToolCall, ...], thought: str) -> None:
        """A turn of parts: texts are joined, calls are the turn's, and an answer of a tool is a turn of its own."""
        texts, answered = list[str](), False
        for part in parts:
            typed = part.get("type") if isinstance(part, dict) else None
            if typed == "tool_result":
                self._lost(unread(part, "content", "is_error"))
                if texts:
                    self._say(role, "\n".join(texts), name)
                self._answer(part.get("content"), part.get("tool_use_id"))
                texts, answered = [], True
            elif typed == "tool_use":
                calls += self._calls([part])
            elif typed in _THOUGHT and role == "assistant":
                thought += _words(part) or " "
            elif text := self._text(part):
                texts.append(text)
        if texts or calls or thought or not answered:
            self._thought(role, "\n".join(texts), thought, name, calls)

    def _thought(
        self, role: str, text: str, thought: str = "", name: str = "", calls: tuple[ToolCall, ...] = ()
    ) -> None:
        """A turn whose reasoning stands next to its text, or in tags that open it, by ``data.reasoning``."""
        tags = _THINK.match(text) if role == "assistant" else None
        if not (tags or thought):
            return self._say(role, text, name, calls)
        form, wanted = IN_FIELDS if thought else IN_TAGS, self._settings.reasoning
        thought, text = thought.strip() or (tags[2].strip() if tags else ""), text[tags.end() if tags else 0 :].lstrip()
        if wanted == "refuse":
            self._add("REASONING", f"a turn has {form}; data.reasoning=leave_out leaves it out, and read reads it")
        elif wanted == "read":
            self._say(role, f"<think>\n{thought}\n</think>\n\n{text}" if thought else text, name, calls)
        else:
            self._findings.notes[f"{form} is left out (data.reasoning)"] += 1
            if text or calls:
                self._say(role, text, name, calls)
        return None

    def _answer(self, content: Any, call: Any, name: Any = None) -> None:
        """A tool's answer, with the name of the call that it answers: by id, or else the first without an answer."""
        known = next((item for item in self._open if call and item[0] == str(call)), None)
        known = known or next((item for item in self._open if not call and name in (None, "", item[1])), None)
        if known:
            self._open.remove(known)
        blocks = isinstance(content, list) and all(map(_is_block, content))
        if blocks or content is None:
            content = "\n".join(text for part in content or () if (text := self._text(part)))
        self._say("tool", self._json(content), name or (known[1] if known else ""))

    def _say(self, role: str, content: str, name: str = "", calls: tuple[ToolCall, ...] = ()) -> None:
        content = content.replace("\r\n", "\n")
        for text in (content, name, *(text for call in calls for text in (call.name, call.arguments))):
            if (surrogate := lone_surrogate(text)) is not None:
                problem = f"content has a lone surrogate at character {surrogate}, which is not Unicode text"
                return self._add("NOT_UNICODE", problem)
        last = self.messages[-1] if self.messages else None
        if calls and not content and last and last.role == "assistant":  # Responses and ShareGPT have them apart
            self.messages[-1] = Message("assistant", last.content, last.name, last.calls + calls)
        else:
            self.messages.append(Message(role, content, name, calls))
        return None

    def _role(self, role: Any) -> str:
        known = role_of(role, self._settings.role_map) if isinstance(role, str) else None
        if known in ROLES:
            if known != role:
                self._findings.notes[role_note(role, known)] += 1
            return known
        text = f"role is {kind(role)}, not one of {', '.join(ROLES)} (of rows: data.role_map={{ROLE: user}} maps it)"
        self._add("ROLE_UNKNOWN", text)
        return ""

    def _text(self, part: Any) -> str:
        """The text of one part."""
        if isinstance(part, str):
            return part
        if not isinstance(part, dict):
            self._add("CONTENT_PART", f"content holds {kind(part)}, and alora reads text; give it as a text")
            return ""
        part = {key: value for key, value in part.items() if value is not None}  # a table gives all parts the same keys
        if part.get("type") == "input_json":
            self._lost(unread(part, "type", "data"))
            return self._json(part.get("data"))
        named, carried = str(part.get("type") or ""), media_of(part)
        texts = [part[key] for key in ("text", "refusal") if key in part]
        media = any(word in named for word in MEDIA)
        what = f"a part of type {shortened(named)}" if named else kind(part)
        if media or (carried and not self._settings.skip_media):
            self._media(what if media else f"{what} with {shortened(carried[0])}")
        elif texts and all(isinstance(text, str) for text in texts):
            self._lost([*carried, *unread(part, "type", "text", "refusal", *carried)])
            return "\n".join(texts)
        else:
            self._add("CONTENT_PART", f"content holds {what}, and alora reads text; give it as a text")
        return ""

    def _lost(self, keys: Sequence[str]) -> None:
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
            return canonical(value)
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
            calls.append(ToolCall(name, self._json(arguments or {})))
            self._open.append((str(call.get("id") or ""), name))
        return tuple(calls)

    def _add(self, code: str, problem: str) -> None:
        self._findings.add(code, self._where, problem, self._part)


def _named(item: Mapping[Any, Any]) -> str | None:
    """The key that says who speaks."""
    return next((key for key in _WHO if item.get(key) is not None), None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_block(part: Any) -> bool:
    return isinstance(part, dict) and ("type" in part or part.keys() == {"text"})


def _words(value: Any, depth: int = 4) -> str:
    """The text of reasoning in any of its forms."""
    if isinstance(value, list) and depth:
        return "\n".join(filter(None, (_words(item, depth - 1) for item in value)))
    if isinstance(value, dict) and depth:
        held = next((value[key] for key in ("thinking", "text", "summary", "content") if value.get(key)), "")
        return _words(held, depth - 1)
    return value if isinstance(value, str) else ""


def media_of(value: Mapping[Any, Any]) -> list[str]:
    """The keys that hold media: ``input_audio``, ``image_url``, ``images``."""
    names = [str(key) for key in value if value[key]]
    return [name for name in names if name.removeprefix("input_").removesuffix("s").removesuffix("_url") in MEDIA]


def unread(value: Mapping[Any, Any], *read: str) -> list[str]:
    """The keys that hold a text and are neither in ``read`` nor known to hold no words of the conversation."""
    names = [key for key in value if key not in read and key not in _KNOWN and not str(key).endswith(("_id", "Id"))]
    return [str(key) for key in names if _holds_text(value[key])]


def opened(call: Any) -> tuple[Any, Any, list[str]]:
    """A tool call's function, its arguments, and the keys whose text would be lost."""
    function = call.get("function") or call.get("custom") or call if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return function, None, []
    key = next((name for name in _ARGUMENTS if function.get(name)), _ARGUMENTS[0])
    wrapping = {name: value for name, value in call.items() if value is not function and function is not call}
    return function, function.get(key), [*unread(function, "name", key), *unread(wrapping)]


def _holds_text(value: Any) -> bool:
    """Whether ``value`` is a text, or a list or an object of anything; a number alone is none, nor is a date."""
    waiting = [value]  # nested as deep as may be
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        elif isinstance(item, str | bytes):
            if item.strip():
                return True
        elif item is not None and item is not value:
            return True
    return False
