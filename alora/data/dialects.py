"""The items of a conversation as canonical messages: OpenAI's, Responses', Anthropic's, ShareGPT's, LangChain's."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from alora.config.schema import ROLES, DataSettings
from alora.data.files import kind, listed, shortened, unpacked
from alora.data.findings import Findings
from alora.data.keys import MEDIA, anthropics, is_block, media_of, opened, unread, words_in
from alora.data.messages import Message, ToolCall, canonical
from alora.data.roles import role_note, role_of, usual_role
from alora.text import lone_surrogate

CALLS = ("function_call", "custom_tool_call")  # types of Responses' items
ANSWERS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "shell_call_output")
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "local_shell_call", "shell_call", "mcp_call")
_PLAIN = ("user", "assistant", "system")
_WHO = ("role", "from", "speaker", "sender", "author", "participant")
_SAID = ("content", "value", "refusal", "text", "parts", "message", "utterance", "body")
_CALLING = ("function_call", "tool_call", "function-call", "tool-call")  # who calls, in ShareGPT
_REASONING = ("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details",
              "reasoning_text", "thought", "thoughts")  # fmt: skip
_THOUGHT = ("thinking", "redacted_thinking", "reasoning")  # types of parts
_THINK = re.compile(
    r"\s*+(?:<(think(?:ing)?|thought|reasoning)>(.*?)</\1>|\[THINK\](.*?)\[/THINK\]"
    r"|<\|channel\|>analysis<\|message\|>(.*?)(?:\Z|<\|end\|>(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>)"
    r"|((?:(?!<think)[^\n]*\n)+?)</think>[ ]*\n)\s*",  # of a template that opens the tag itself
    re.DOTALL | re.IGNORECASE,
)
_LINE_END = re.compile(r"_x000D_\n|\r\r?\n|\r")  # Excel's, Windows', the first Macs'
_WITHOUT = "a turn without content is left out"
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
        if item is None:
            self._findings.notes[_WITHOUT] += 1
        elif isinstance(item, list) and len(item) == 2 and all(isinstance(said, str | None) for said in item):
            who = usual_role(item[0] or "")  # or what was asked and answered, as Gradio and LLaMA-Factory have it
            turns = [(who, item[1])] if who else zip(("user", "assistant"), item, strict=True)
            for role, said in turns:
                self._item({"role": role, "content": said})
        elif not isinstance(item, dict):
            self._add("MESSAGE_KIND", f'is {kind(item)}; write {{"role": ..., "content": ...}}')
        elif len(item) == 2 and item.get("role") in _PLAIN and isinstance(item.get("content"), str):
            self._thought(item["role"], item["content"])  # nearly every message there is
        elif (typed := item.get("type")) in CALLS:
            self._say("assistant", "", calls=self._calls([{"id": item.get("call_id"), "function": item}]))
        elif typed in _HOSTED:
            self._hosted(item, typed)
        elif typed in ANSWERS:
            self._lost(unread(item, "output"))
            self._answer(item.get("output"), item.get("call_id"), item.get("name"))
        elif typed == "reasoning" and "role" not in item:
            self._thought("assistant", "", words_in(item.get("summary") or item.get("content")) or " ")
        elif isinstance(it := item.get("data", item.get("kwargs")), dict) and usual_role(str(it.get("type", typed))):
            self._turn({"type": typed, **it})  # LangChain's, dumped
        elif len(item) == 1 and isinstance(name := next(iter(item)), str) and usual_role(name):
            self._turn({"role": name, "content": item[name]})
        elif isinstance(typed, str) and typed != "message" and not usual_role(typed) and not _named(item):
            self._media(f"an item of type {shortened(typed)}")
        else:
            self._turn(item)

    def _turn(self, item: dict[Any, Any]) -> None:
        who = _named(item) or ("type" if isinstance(item.get("type"), str) and usual_role(item["type"]) else "role")
        there = [key for key in _SAID if key in item]
        said = next((key for key in there if item[key] is not None), there[0] if there else "content")
        calling = who == "from" and item[who] in _CALLING
        role = "assistant" if calling else self._role(item.get(who))
        given = [call for key in ("tool_calls", "function_call") for call in _as_list(item.get(key) or [])]
        if calling and isinstance(packed := unpacked(item.get(said)), dict | list):
            given, item = _as_list(packed), {**item, said: None}
        thoughts = [key for key in _REASONING if role == "assistant" and item.get(key)]
        read = [who, said, "tool_calls", "function_call", "name", *thoughts, *media_of(item)]
        refusal = item.get("refusal")
        lost = unread(item, *read, *["refusal"] * isinstance(refusal, str))
        if lost and not (there or given or thoughts):
            self._add("CONTENT_KIND", f"no content: rename the text's key to content, if it is {listed(lost)}")
            return
        self._lost([*media_of(item), *lost])
        calls, content, thought = self._calls(given), item.get(said), "\n".join(words_in(item[key]) for key in thoughts)
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
        elif content is None and (said in item or role == "assistant"):
            self._findings.notes[_WITHOUT] += 1
        else:
            self._add("CONTENT_KIND", f"content is {kind(content)}; it must be a text")

    def _blocks(self, role: str, parts: list[Any], name: str, calls: tuple[ToolCall, ...], thought: str) -> None:
        """A turn of parts: texts are joined, calls are the turn's, and an answer of a tool is a turn of its own."""
        texts, answered = list[str](), False
        for part in map(anthropics, parts):
            typed = str(part.get("type")) if isinstance(part, dict) else ""
            if typed.endswith("tool_result"):
                self._lost(unread(part, "content", "is_error", "name"))
                if texts:
                    self._say(role, "\n".join(texts), name)
                self._answer(part.get("content"), part.get("tool_use_id"), part.get("name"))
                texts, answered = [], True
            elif typed.endswith("tool_use"):
                calls += self._calls([part])
            elif typed in _THOUGHT and role == "assistant":
                thought += words_in(part) or " "
            elif text := self._text(part):
                texts.append(text)
        if texts or calls or thought or not answered:
            self._thought(role, "\n".join(texts), thought, name, calls)

    def _thought(
        self, role: str, text: str, thought: str = "", name: str = "", calls: tuple[ToolCall, ...] = ()
    ) -> None:
        """A turn whose reasoning stands next to its text, or in tags that open it, by ``data.reasoning``; calls may
        stand in tags, too."""
        tags = _THINK.match(text) if role == "assistant" else None
        own, *tagged = text.split("<tool_call>") if role == "assistant" else [text]
        parts = [part.partition("</tool_call>") for part in tagged]
        made = [unpacked(canonical(call.strip())) for call, _, _ in parts]
        if made and all(isinstance(call, dict) and call.get("name") for call in made):
            text = "\n".join(filter(None, (own.rstrip(), *(rest.strip() for _, _, rest in parts))))
            calls += self._calls(made)
        if not (tags or thought):
            return self._say(role, text, name, calls)
        form, wanted = IN_FIELDS if thought else IN_TAGS, self._settings.reasoning
        within = next(filter(None, tags.groups()[1:]), "") if tags else ""
        thought, text = thought.strip() or within.strip(), text[tags.end() if tags else 0 :].lstrip()
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
        if isinstance(content, str) and content.strip().startswith("<tool_response>"):
            content = content.strip().removeprefix("<tool_response>").removesuffix("</tool_response>").strip()
        blocks = isinstance(content, list) and all(map(is_block, content))
        if blocks or content is None:
            content = "\n".join(text for part in content or () if (text := self._text(part)))
        self._say("tool", self._json(content), name or (known[1] if known else ""))

    def _hosted(self, item: dict[Any, Any], typed: str) -> None:
        """A call of a tool that the maker of the model runs, whose answer may stand in it."""
        given = ("arguments", "action", "queries", "code")
        answer = next((item[key] for key in ("output", "outputs", "results") if item.get(key)), None)
        self._lost(unread(item, "name", "output", "outputs", "results", *given))
        arguments = next((item[key] for key in given if item.get(key)), None)
        call = {
            "id": item.get("call_id"),
            "name": item.get("name") or typed.removesuffix("_call"),
            "arguments": arguments,
        }
        self._say("assistant", "", calls=self._calls([call]))
        if answer is not None:
            self._answer(self._json(answer), item.get("call_id"))

    def _say(self, role: str, content: str, name: str = "", calls: tuple[ToolCall, ...] = ()) -> None:
        content = _LINE_END.sub("\n", content)
        if not content and not calls and role != "tool":
            self._findings.notes[_WITHOUT] += 1
            return None
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
        self._add("ROLE_UNKNOWN", "no role: rename the key that says who speaks to role" if role is None else text)
        return ""

    def _text(self, part: Any) -> str:
        """The text of one part."""
        if part is None or isinstance(part, str):
            return part or ""
        if not isinstance(part, dict):
            self._add("CONTENT_PART", f"content holds {kind(part)}, and alora reads text; give it as a text")
            return ""
        part = {key: value for key, value in part.items() if value is not None}  # a table gives all parts the same keys
        if part.get("type") == "input_json":
            self._lost(unread(part, "type", "data"))
            return self._json(part.get("data"))
        named, carried = str(part.get("type") or ""), media_of(part)
        what = f"a part of type {shortened(named)}" if named else kind(part)
        if named.endswith("_result"):  # of a search that Anthropic runs
            return self._json({key: part[key] for key in part if key not in ("type", "encrypted_content")})
        texts = [part[key] for key in ("text", "refusal") if key in part]
        media = any(word in named for word in MEDIA)
        if media or (carried and not self._settings.skip_media):
            self._media(what if media else f"{what} with {shortened(carried[0])}")
        elif texts and all(isinstance(text, str) for text in texts):
            self._lost([*carried, *unread(part, "type", "text", "refusal", *carried)])
            return "\n".join(texts)
        elif part.keys() != {"type"} or "text" not in named:  # whose text is null
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
            calls.append(ToolCall(name, _LINE_END.sub("\n", self._json(arguments or {}))))
            self._open.append((str(call.get("id") or ""), name))
        return tuple(calls)

    def _add(self, code: str, problem: str) -> None:
        self._findings.add(code, self._where, problem, self._part)


def _named(item: Mapping[Any, Any]) -> str | None:
    """The key that says who speaks."""
    return next((key for key in _WHO if item.get(key) is not None), None)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
