"""Conversation + policy → token ids, split where the adapter starts. The same code for training and serving.

    prefix                                                     | suffix
    [system turn] [the conversation: one turn, or its own turns] | [user turn: "Policy check:"] [answer header]

The prefix never depends on the policy, and the suffix never on the conversation; the adapter starts at the first token
of the suffix. Pieces of the chat template are tokenised with its control tokens, everything else without
(:mod:`alora.prompt.tokens`).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from alora.config.schema import PromptSettings
from alora.config.setting import settings_of
from alora.data.messages import Conversation, Message
from alora.errors import ConfigError, PolicyError, RenderError
from alora.policy import CONVERSATION, LAST_TURN, Policy
from alora.prompt.parts import INVOCATION, Prefix, Prompt, Question, Suffix, Truncation
from alora.prompt.template import take_apart
from alora.prompt.tokens import panics_refused, text_encoder
from alora.prompt.truncate import MARKERS_AT_MOST, Turn, bounded, fit, windows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SYSTEM_TEXT = "You review conversations between users and an assistant."
HEADING = "Conversation:\n"
SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_BLANK = r"(?:[^\S\n]|▁)"  # SentencePiece writes a blank as the latter
# What reads as another's turn, where a user wrote it; behind "> ", as mail quotes, and so what stands so already.
_FORGED = re.compile(rf"\n(?=(?:>{_BLANK})*(?:{'|'.join(SPEAKERS.values())})(?:{_BLANK}\(|[:：]))")
_OPENING = 32  # tokens that hold a quoted speaker
MARKER = " [...] "
OTHER_ANSWERS = ("Yes", "No", "yes", "no", "True", "False", "A", "B", "C", "D", "1", "2", "3", "4")
LONGEST_SUFFIX = 4096  # tokens, all of which every policy computes anew for every conversation
LEAST_CONTENT = 16  # tokens of conversation that a prefix must have room for


class Renderer:
    """Renders for one base: its tokenizer, its chat template with ``template_kwargs``, and one layout.

    Raises:
        ConfigError: an unknown layout, instruction or truncation, or a limit with no room for a conversation.
        RenderError: the template or the tokenizer cannot be used (see ``template``, ``tokens``).
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        settings: PromptSettings,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        for key, _, limits in settings_of(PromptSettings):
            if problem := limits.problem(f"prompt.{key}", getattr(settings, key)):
                raise ConfigError(problem)
        self.settings = settings
        self._tokenizer = tokenizer
        self._text = text_encoder(tokenizer)
        self._template = take_apart(tokenizer, template_kwargs)
        self._pieces: dict[str, list[int]] = {}
        self._suffixes: dict[Policy, Suffix] = {}
        self._longest_suffix: float = LONGEST_SUFFIX
        self._marker = self._text.encode(MARKER)
        self._refuse_small_limit()

    def prompt(self, conversation: Conversation, policy: Policy) -> Prompt:
        return Prompt(self.prefix(conversation), self.suffix(policy))

    def with_rule(self) -> "Renderer":
        """The same prefixes with the whole rule in the suffix, as a base without an adapter needs it, however long."""
        renderer = copy(self)
        renderer._longest_suffix = math.inf
        renderer.settings, renderer._suffixes = replace(self.settings, instruction="rule"), {}
        return renderer

    def prefix(self, conversation: Conversation) -> Prefix:
        """The shared part: depends on the conversation alone.

        Raises:
            RenderError: no message, an unknown role, or a text that is not Unicode.
        """
        if not conversation.messages:
            raise RenderError(f"conversation {conversation.id!r} has no message")
        limit, taken_from = self.settings.max_prefix_tokens, cut_from(self.settings)
        own = tuple(conversation.messages)
        messages = bounded(own, limit, MARKER)
        system, turns = self._turns(replace(conversation, messages=messages))
        whole = self._join(system, turns)
        if len(whole) <= limit:
            return Prefix(tuple(whole), None if messages is own else Truncation(len(whole), len(whole), taken_from))
        cuttable = [system, *turns] if system.kept else turns
        budget = limit - self._overhead() - (0 if system.kept else len(system.token_ids))
        cut = fit(cuttable, budget, taken_from, self._marker, partial(self._quote, messages))
        ids = self._join(*((cut[0], cut[1:]) if system.kept else (system, cut)))
        return Prefix(tuple(ids), Truncation(len(whole), len(ids), taken_from))

    def windows(self, conversation: Conversation) -> list[Prefix]:
        """The prefixes that a verdict comes from: several where ``truncation`` is "windows" and one is too short."""
        whole, limit = self.prefix(conversation), self.settings.max_prefix_tokens
        if self.settings.truncation != "windows" or whole.truncation is None:
            return [whole]

        def size(messages: Sequence[Message]) -> int:
            return len(self._join(*self._turns(Conversation("", tuple(messages)))))

        own = tuple(conversation.messages)
        messages = bounded(own, limit, MARKER)
        prefixes = [self.prefix(Conversation(conversation.id, part)) for part in windows(messages, limit, size, MARKER)]
        if messages is not own:
            lost = replace(whole.truncation, tokens_after=whole.truncation.tokens_before)
            prefixes[-1] = replace(prefixes[-1], truncation=lost)
        return prefixes

    def questions(
        self, conversation: Conversation, suffixes: Sequence[Suffix], asked: Sequence[int] | None = None
    ) -> list[Question]:
        """One question for each of :meth:`windows`, to all of the scorer's adapters where ``asked`` is None."""
        asked, prefixes = range(len(suffixes)) if asked is None else asked, self.windows(conversation)
        return [Question(prefix, suffixes, asked, len(prefixes) - number) for number, prefix in enumerate(prefixes, 1)]

    def suffix(self, policy: Policy) -> Suffix:
        """The policy's part: depends on the policy alone.

        Raises:
            PolicyError: an answer word is not a single token after the suffix, or the suffix is too long.
            RenderError: PEFT's search would not find the suffix's first token.
        """
        if policy not in self._suffixes:
            self._suffixes[policy] = self._make_suffix(policy)
        return self._suffixes[policy]

    def _make_suffix(self, policy: Policy) -> Suffix:
        if policy.judge == LAST_TURN and self.settings.truncation == "windows":
            raise PolicyError(
                f"policy {policy.id!r} judges the last turn, which one window of a long conversation has; set "
                "prompt.truncation=start"
            )
        # The invocation is tokenised apart from what follows, so that it is the same for every policy.
        invocation = [*self._markup(self._template.open["user"]), *self._text.encode(INVOCATION)]
        closing = self._template.close["user"] + self._template.generation
        ids = [*invocation, *self._text.encode(self._question(policy)), *self._markup(closing)]
        if len(ids) > self._longest_suffix:
            raise PolicyError(
                f"policy {policy.id!r}: its suffix has {len(ids):,} tokens, and {LONGEST_SUFFIX:,} is the most; "
                "shorten its title or rule, or leave them out: prompt.instruction=none"
            )
        labels = tuple(self._answer_token(closing, word, policy) for word in policy.answers)
        if len(set(labels)) < len(labels):
            raise PolicyError(f"policy {policy.id!r}: answer words {list(policy.answers)} share a token on this base")
        return Suffix(tuple(ids), tuple(invocation), labels)

    def _question(self, policy: Policy) -> str:
        """What the suffix says of the policy between invocation and answer header; a trained adapter needs none."""
        subject = "last turn" if policy.judge == LAST_TURN else "conversation"
        if self.settings.instruction == "none":
            return "" if policy.judge == CONVERSATION else f" the {subject}."
        rule = f" {policy.rule.strip()}" if self.settings.instruction == "rule" and policy.rule.strip() else ""
        words = f"Answer {', '.join(policy.answers[:-1])} or {policy.answers[-1]}."
        return f" {policy.title.strip().rstrip('.')}.{rule} Does the {subject} violate it? {words}"

    def _answer_token(self, closing: str, word: str, policy: Policy) -> int:
        token_ids = self._answer_tokens(closing, word)
        if len(token_ids) == 1 and token_ids[0] not in self._text.forbidden:
            return token_ids[0]
        variants = (word.capitalize(), word.lower(), word.upper(), *OTHER_ANSWERS)
        fitting = [variant for variant in dict.fromkeys(variants) if len(self._answer_tokens(closing, variant)) == 1]
        pieces = self._tokenizer.convert_ids_to_tokens(token_ids)
        raise PolicyError(
            f"policy {policy.id!r}: the answer word {word!r} is {len(token_ids)} tokens {pieces} on this base, and "
            f"must be one ordinary token; use one of {fitting or 'the words that its vocabulary has whole'} in 'labels'"
        )

    def _answer_tokens(self, closing: str, word: str) -> list[int]:
        """The tokens that ``word`` adds after the answer header; with the header's own where the two merge."""
        before, after = self._markup(closing), self._markup(closing + word)
        return after[len(before) :] if after[: len(before)] == before else after

    def _turns(self, conversation: Conversation) -> tuple[Turn, list[Turn]]:
        """The system turn, and the others; ``system.kept`` says that its text is the conversation's own."""
        for message in conversation.messages:
            if message.role not in SPEAKERS:
                raise RenderError(f"conversation {conversation.id!r}: role {message.role!r} is not in {list(SPEAKERS)}")
        generic = Turn("system", tuple(self._text.encode(SYSTEM_TEXT)))
        messages = conversation.messages
        if self.settings.layout == "transcript":
            return generic, [Turn("user", tuple(self._text.encode("\n".join(_lines(messages)))), kept=True)]
        own = messages[0].role == "system"
        turns = [self._turn(message) for message in messages[own:]]
        if not own:
            return generic, turns
        return Turn("system", tuple(self._text.encode(self._trimmed("system", messages[0].content))), kept=True), turns

    def _turn(self, message: Message) -> Turn:
        role, content = message.role, message.text
        if role not in self._template.open:  # a later system turn, or a tool's, where the template has none
            role, content = "user", _spoken(message)
        elif role == "user" and not SPEAKERS.keys() <= self._template.open.keys():
            content = f"> {content}" if _FORGED.match(f"\n{self._trimmed(role, content)}") else content
        content = json.dumps(content, ensure_ascii=False)[1:-1] if role in self._template.quotes else content
        wrapper = len(self._markup(self._template.open[role])) + len(self._markup(self._template.close[role]))
        if role == "tool":
            wrapper = max(wrapper, len(self._markup(self._template.between_tools)))
        return Turn(role, tuple(self._text.encode(self._trimmed(role, content))), wrapper)

    def _quote(self, messages: Sequence[Message], end: tuple[int, ...]) -> list[int]:
        """The quote before the ``end`` of a transcript that the cut makes read as a turn, and that is none."""
        if self.settings.layout != "transcript" or not _FORGED.match("\n" + self._words(end[:_OPENING])):
            return []
        text = self._words(end)
        # Of the lines that open so, those of a turn alone are not quoted.
        own = not text.startswith(">") and "\n".join(["", *_lines(messages)]).endswith(f"\n{text}")
        return [] if own else self._text.encode("> ")

    def _words(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([*ids], clean_up_tokenization_spaces=False)).lstrip()

    def _trimmed(self, role: str, content: str) -> str:
        return content.strip() if role in self._template.trims else content

    def _join(self, system: Turn, turns: list[Turn]) -> list[int]:
        """The prefix's tokens: template pieces around the turns, which the template itself might refuse to combine."""
        template = self._template
        ids = [*self._markup(template.head), *system.token_ids]
        opened = template.folded_system is not None and bool(turns) and turns[0].role == "user"
        ids += self._markup(template.folded_system or "") if opened else self._markup(self._close_system())
        heading = self._text.encode(HEADING) if self.settings.layout == "transcript" else []
        for index, turn in enumerate(turns):
            if index and turn.role == turns[index - 1].role == "tool":
                ids += self._markup(template.between_tools)
            else:
                ids += self._markup(template.close[turns[index - 1].role]) if index else []
                ids += [] if opened and index == 0 else self._markup(template.open[turn.role])
            ids += [*heading, *turn.token_ids]
        return ids + self._markup(template.close[turns[-1].role]) if turns else ids

    def _close_system(self) -> str:
        return self._template.close["system" if self._template.folded_system is None else "user"]

    def _overhead(self) -> int:
        """An upper bound on the tokens of a prefix that are in no turn's cost, system text left out."""
        pieces = [self._template.head, self._close_system(), self._template.folded_system or ""]
        if self.settings.layout == "transcript":
            pieces += [self._template.open["user"], self._template.close["user"]]
            return sum(len(self._markup(piece)) for piece in pieces) + len(self._text.encode(HEADING))
        return sum(len(self._markup(piece)) for piece in pieces)

    def _refuse_small_limit(self) -> None:
        least = self._overhead() + len(self._text.encode(SYSTEM_TEXT)) + MARKERS_AT_MOST * len(self._marker)
        widest = max(self._turn(Message(role, "")).wrapper for role in ("user", "assistant"))
        least += 2 * widest + LEAST_CONTENT
        if self.settings.max_prefix_tokens < least:
            raise ConfigError(
                f"prompt.max_prefix_tokens={self.settings.max_prefix_tokens} leaves no room for a conversation on this "
                f"chat template; give it at least {least}"
            )

    def _markup(self, piece: str) -> list[int]:
        """The tokens of a piece of the template, control tokens included."""
        if piece not in self._pieces:
            with panics_refused(self._tokenizer.name_or_path):
                ids = self._tokenizer.encode(piece, add_special_tokens=False, split_special_tokens=False)
            self._pieces[piece] = ids
        return self._pieces[piece]


def cut_from(settings: PromptSettings) -> str:
    """What one prefix of a too long conversation loses; training, which has no windows, reads one."""
    return "start" if settings.truncation == "start" else "middle"


def _lines(messages: Sequence[Message]) -> list[str]:
    """Each message as it stands in a transcript."""
    return [_FORGED.sub("\n> ", _spoken(message)) for message in messages]


def _spoken(message: Message) -> str:
    """A message as a line of a transcript."""
    name = f" ({message.name})" if message.name else ""
    return f"{SPEAKERS[message.role]}{name}: {message.text}"
