"""Who seems to speak within the turns of transcripts, and has no role: its lines are part of another's turn."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from alora.data.cells import COLON, INDENT, LINE, NAME_WORDS, ROLES, SPEAKERS, STAMP, counted, key_of, listed
from alora.data.messages import Conversation
from alora.findings import FIRST, Findings

# "Bot:", "**Bot:**", "[Bot]:", "Agent #2:"
_OPENER = re.compile(
    rf"{LINE}{INDENT}{STAMP}[^\w\n:]{{0,4}}(?!\d{{1,2}}:\d)(\w[^\n:：]{{0,40}}){COLON}(?!//)", re.MULTILINE
)  # "9:00" is a time
_NAMES = {*SPEAKERS, *ROLES, "agent"} - {"model", "system", "tool"}
_LEAST = 100  # one of so many transcripts has lines of those who are told
_MOST = 10_000  # names in memory


class Openers:
    """The names before a colon that open lines within the turns of transcripts, and in how many of these; and the names
    that open other texts. All names count together: each transcript may have a customer of its own."""

    def __init__(self, role_map: Mapping[str, str]) -> None:
        self._mapped, self.transcripts = list(role_map), 0
        self._numbered = {_stem(name) for name in role_map} - {""}
        self._names: Counter[str] = Counter()
        self._with, self._speaking = 0, 0  # transcripts with any name, and with a speaker's
        self._whole, self._first = 0, Counter[str]()

    def add(self, row: Any, conversation: Conversation | None, column: str) -> None:
        """Count those of a ``row`` whose ``column`` is a transcript, or the row, where the text is one message."""
        text = row.get(column) if self._mapped and isinstance(row, dict) else None
        if conversation is None or not isinstance(text, str):
            return
        if conversation.messages[-1].content == text:
            if not conversation.unsplit and self._mapped != [column]:  # else another note says so, or it is as asked
                self._whole += 1
                name = self._name(first[1]) if (first := _OPENER.match(text.lstrip())) else ""
                self._first.update([name] if name in self._first or (name and len(self._first) < _MOST) else [])
            return
        self.transcripts += 1
        texts = (message.content for message in conversation.messages)
        names = {self._name(opener) for text in texts for opener in _OPENER.findall(text)} - {""}
        self._with += bool(names)
        self._speaking += any(map(_speaks, names))
        self._names.update(names)
        if len(self._names) > _MOST:
            self._names = Counter(dict(self._in_order()[: _MOST // 2]))

    def _name(self, opener: str) -> str:
        """Of all that begin with a speaker of the map, one ("Agent ..."); none for a sentence."""
        for name in self._mapped:
            rest = opener[len(name) :]
            if opener.startswith(name) and rest.strip() and not (_letter(rest[0]) or (name[-1:] + rest[0]).isdigit()):
                return f"{name} ..."
        if len(opener.split()) > NAME_WORDS:
            return ""
        name = _stem(opener)
        return f"{name} ..." if name in self._numbered else name or "a number"

    def _in_order(self) -> list[tuple[str, int]]:
        """Those that have the name of a speaker, or begin with one of the map, and then the others; frequent ones
        first."""
        return sorted(self._names.items(), key=lambda it: (not _speaks(it[0]), -it[1], it[0]))

    def note(self, findings: Findings) -> None:
        """Say who was found: speakers, and any other names where the transcripts that have some are no exceptions."""
        some = self._with * _LEAST >= self.transcripts
        told = [name for name, _ in self._in_order() if some or _speaks(name)]
        if told:
            text = f"{FIRST} {counted(told)} are part of the turn before them: data.role_map has no such speaker"
            findings.notes[text] += self._with if some else self._speaking

    def note_whole(self, findings: Findings) -> None:
        """Say how many texts are one message, and who opens them."""
        if self._whole:
            names = [name for name, count in self._first.most_common(3) if count * _LEAST >= self._whole]
            text = "a text is one message: its first line opens with no speaker of data.role_map, spelt so"
            findings.notes[f"{text}; some open with {listed(names)}" if names else text] += self._whole


def _speaks(name: str) -> bool:
    return key_of(name) in _NAMES or name.endswith(" ...")


def _stem(name: str) -> str:
    """``name`` up to its last letter: "Customer #17" is one speaker with "Customer #18"."""
    return name[: max((place for place, character in enumerate(name, 1) if _letter(character)), default=0)]


def _letter(character: str) -> bool:
    """Whether it is a letter, or a mark of one, which a letter of many scripts has."""
    return unicodedata.category(character)[0] in "LM"
