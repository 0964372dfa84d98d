"""Take a chat template apart: the text that it writes around each role's content.

The template is rendered with marks instead of content and cut at the marks. Conversations are then put together from
the pieces, so their text never passes through Jinja, a template that refuses two user turns in a row can still be given
an instruction turn, and the index where an adapter starts is known instead of searched.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from alora.errors import RenderError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Some templates write today's date into the system turn, which would change the prompt overnight. Llama 3.2's own
# fallback date stands in, for training and serving alike.
FIXED_DATE = datetime(2024, 7, 26)
_CODES = [f"%{letter}" for letter in ("-d", "-m", *"aAbBdHIjmMpSyY")]
_known: "dict[str, ChatTemplate]" = {}
_DATE_STRING = "date_string"
# In Jinja, in front of the template: transformers hands no functions on (5.24), and trims the line break.
_CLOCK = "{{%- macro strftime_now(format) -%}}{{{{ format{} }}}}{{%- endmacro %}}\n".format(
    "".join(f"|replace('{code}', '{FIXED_DATE.strftime(code)}')" for code in _CODES)
)


@dataclass(frozen=True)
class ChatTemplate:
    """The text that a template writes around content.

    ``head`` comes before the system text, BOS included. ``open`` and ``close`` stand around the content of each role.
    Where ``folded_system`` is a text, the template writes the system text into the first user turn: ``head`` has then
    opened that turn, and ``folded_system`` stands between system text and user text. Roles in ``trims`` have white
    space at both ends of their content removed. ``open`` lacks "system" where a later system turn is not possible, and
    "tool" where a tool's answer is none; ``between_tools`` stands between two answers in a row, and roles in ``quotes``
    have their content written as a JSON string.
    """

    head: str
    open: Mapping[str, str]
    close: Mapping[str, str]
    generation: str
    trims: frozenset[str]
    folded_system: str | None = None
    between_tools: str = ""
    quotes: frozenset[str] = frozenset()


_MARKS = {name: f"ALORA7{name}7MARK" for name in ("S1", "U1", "A1", "U2", "A2", "U3", "S2", "T1", "T2")}
_ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}
_TOOLS = ("U1", "A1", "T1", "T2", "A2", "U2")
_PAD = " \n "


def take_apart(tokenizer: "PreTrainedTokenizerBase", template_kwargs: Mapping[str, Any] | None = None) -> ChatTemplate:
    """Take the tokenizer's chat template apart; ``template_kwargs`` are handed to it (``enable_thinking=False``)."""
    if not tokenizer.chat_template:
        raise RenderError(
            f"the tokenizer of {tokenizer.name_or_path or 'this base'} has no chat template; give it one as "
            "base.chat_template does"
        )
    # What the call itself, the clock and the tokenizer say: as a setting it would be another template.
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, _DATE_STRING, *tokenizer.special_tokens_map}
    for name, value in (template_kwargs or {}).items():
        if name in taken or name == "messages" or not isinstance(value, bool):
            raise RenderError(
                f"template_kwargs.{name} is not a switch of a chat template; only names that the template itself "
                "reads, with true or false, can be set (enable_thinking)"
            )
    facts = type(tokenizer).__qualname__, tokenizer.chat_template, template_kwargs, tokenizer.special_tokens_map
    key = json.dumps(facts, sort_keys=True, default=str)
    if key not in _known:
        clock = {_DATE_STRING: FIXED_DATE.strftime("%d %b %Y")}
        _known[key] = _Surgeon(tokenizer, {**clock, **(template_kwargs or {})}).take_apart()
    return _known[key]


class _Surgeon:
    """The cuts, in order; each reads off one more piece."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", kwargs: Mapping[str, Any]) -> None:
        self.tokenizer, self.kwargs = tokenizer, kwargs
        self.template = _CLOCK + tokenizer.get_chat_template()

    def render(self, names: Sequence[str], generation: bool = False, pad: str = "") -> str:
        messages = [{"role": _ROLES[name[0]], "content": f"{pad}{_MARKS[name]}{pad}"} for name in names]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages,
                    chat_template=self.template,
                    tokenize=False,
                    add_generation_prompt=generation,
                    **self.kwargs,
                )
            )
        except Exception as error:  # a template is foreign code: anything can come out of it
            turns = ", ".join(_ROLES[name[0]] for name in names)
            raise RenderError(
                f"the base's chat template fails on the turns {turns}: {first_line(error)[:900]}; mend its "
                "chat_template.jinja, or choose another base"
            ) from error

    def cut(self, names: Sequence[str], generation: bool = False) -> list[str]:
        """The pieces around the marks, ``len(names) + 1`` of them."""
        text, pieces = self.render(names, generation), []
        for name in names:
            piece, separator, text = text.partition(_MARKS[name])
            if not separator or any(mark in piece for mark in _MARKS.values()):
                raise RenderError(f"the chat template drops, moves or repeats content on {' '.join(names)}")
            pieces.append(piece)
        if any(mark in text for mark in _MARKS.values()):
            raise RenderError(f"the chat template repeats content on {' '.join(names)}")
        return [*pieces, text]

    def take_apart(self) -> ChatTemplate:
        try:
            head, after_system, *_ = self.cut(["S1", "U1", "A1", "U2"])
            system = ["S1"]
        except RenderError:  # no system turn, or it is written somewhere else: we fold the text in ourselves
            head, after_system, system = self.cut(["U1", "A1", "U2"])[0], "\n\n", []
        *_, user_assistant, assistant_user, last_user = self.cut([*system, "U1", "A1", "U2"])
        close_user = self.close(last_user, user_assistant)
        close_assistant = self.close(self.cut([*system, "U1", "A1"])[-1], assistant_user, close_user)
        open_user = _after(assistant_user, close_assistant, "an assistant turn")
        open_assistant = _after(user_assistant, close_user, "a user turn")
        generation = _after(self.cut([*system, "U1", "A1", "U2"], generation=True)[-1], close_user, "a user turn")
        if not generation and open_assistant.strip():
            generation = open_assistant  # the template ignores add_generation_prompt
        opens = {"user": open_user, "assistant": open_assistant}
        closes = {"user": close_user, "assistant": close_assistant}
        folded = after_system if not system or not after_system.endswith(open_user) else None
        if folded is None:
            closes["system"] = after_system.removesuffix(open_user)
            if (open_system := self.later_system(closes, opens)) is not None:
                opens["system"] = open_system
        trims = self.changed([*system, "U1", "A1", "U2"])
        template = ChatTemplate(head, opens, closes, generation, trims, folded, *self.tools(system, opens, closes))
        if "tool" in opens and "tool" not in template.quotes:
            template = replace(template, trims=trims | self.changed([*system, *_TOOLS]))
        self.verify(template, system)
        return template

    def close(self, last: str, between: str, otherwise: str = "") -> str:
        """The text that closes a turn, from the text after the ``last`` turn and the text ``between`` two.

        Some templates put an end of text behind the last turn, or leave it open, or close it in a way of its own.
        """
        end = str(self.tokenizer.eos_token or "")
        for candidate in (last, last.removesuffix(end), otherwise):
            if candidate and between.startswith(candidate):
                return candidate
        return last.removesuffix(end)

    def later_system(self, closes: Mapping[str, str], opens: Mapping[str, str]) -> str | None:
        """The text that opens a system turn inside a conversation; None where the template has no such turn."""
        try:
            *_, assistant_system, system_user, _ = self.cut(["S1", "U1", "A1", "S2", "U2"])
        except RenderError:
            return None
        if not assistant_system.startswith(closes["assistant"]) or system_user != closes["system"] + opens["user"]:
            return None
        return assistant_system.removeprefix(closes["assistant"])

    def tools(self, system: Sequence[str], opens: dict[str, str], closes: dict[str, str]) -> tuple[str, frozenset[str]]:
        """Add the text around a tool's answer, where the template has such a turn; returns the text between two, and
        whether they are quoted."""
        try:
            *_, before, between, after, _, _ = self.cut([*system, *_TOOLS])
        except RenderError:
            return "", frozenset()
        if not before.startswith(closes["assistant"]) or not after.endswith(opens["assistant"]):
            return "", frozenset()
        opens["tool"] = before.removeprefix(closes["assistant"])
        closes["tool"] = after.removesuffix(opens["assistant"])
        return between, frozenset(("tool",)) - self.changed([*system, *_TOOLS], json.dumps(_PAD)[1:-1])

    def changed(self, names: Sequence[str], wanted: str = _PAD) -> frozenset[str]:
        """The roles whose content between two pads is not written between two of ``wanted``."""
        text = self.render(names, pad=_PAD)
        whole = [name for name in names if wanted + _MARKS[name] in text and _MARKS[name] + wanted in text]
        return frozenset(_ROLES[name[0]] for name in names if name not in whole)

    def verify(self, template: ChatTemplate, system: Sequence[str]) -> None:
        """Put a longer conversation together from the pieces, and compare with the template's own rendering."""
        names = [*system, "U1", "A1", "U2", "A2", "U3"]
        ours = template.head
        for name in names:
            role = _ROLES[name[0]]
            opened_by_head = name == "S1" or (name == "U1" and template.folded_system is not None)
            ours += ("" if opened_by_head else template.open[role]) + _MARKS[name]
            folded = template.folded_system if name == "S1" else None
            ours += template.close[role] if folded is None else folded
        theirs = self.render(names, generation=True)
        if theirs not in (ours + template.generation, ours):
            raise RenderError(
                "the chat template writes different things around a turn at different positions in a conversation, "
                f"so it cannot be taken apart: {_first_difference(ours, theirs)}"
            )


def _after(text: str, start: str, what: str) -> str:
    if not text.startswith(start):
        raise RenderError(f"the chat template does not always end {what} in the same way: {start!r} and {text!r}")
    return text.removeprefix(start)


def _first_difference(ours: str, theirs: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"expected {ours[at : at + 40]!r}, the template wrote {theirs[at : at + 40]!r}"
