"""Who seems to speak within the turns of transcripts, and has no role: its lines are part of another's turn."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from alora.data.cells import COLON, INDENT, LINE, ROLES, SPEAKERS, STAMP, key_of, listed
from alora.data.messages import Conversation
from alora.findings import FIRST, Findings

_OPENER = re.compile(rf"{LINE}{INDENT}{STAMP}(\w[\w .()-]{{0,30}}){COLON}(?!//)", re.MULTILINE)
_NAMES = {*SPEAKERS, *ROLES, "agent"} - {"model", "system", "tool"}
_LEAST = 100  # one of so many transcripts has lines of whoever is told
_MOST = 10_000  # names in memory


class Openers:
    """The names before a colon that open lines within the turns of transcripts, and in how many of these."""

    def __init__(self, role_map: Mapping[str, str]) -> None:
        self._mapped = tuple(f"{name}{mark}" for name in role_map for mark in (" ", "("))
        self._asked, self._transcripts = bool(role_map), 0
        self._names: Counter[str] = Counter()

    def add(self, row: Any, conversation: Conversation | None, column: str) -> None:
        """Count those of a ``row`` whose ``column`` is a transcript."""
        text = row.get(column) if self._asked and isinstance(row, dict) else None
        if conversation is None or not isinstance(text, str) or conversation.messages[-1].content == text:
            return
        self._transcripts += 1
        texts = (message.content for message in conversation.messages)
        self._names.update({name.rstrip() for text in texts for name in _OPENER.findall(text)})
        if len(self._names) > _MOST:
            self._names = Counter({name: count for name, count in self._names.items() if self._tells(name, count)})

    def _tells(self, name: str, count: int) -> bool:
        speaks = key_of(name) in _NAMES or name.startswith(self._mapped)
        return speaks or count * _LEAST >= self._transcripts

    def note(self, findings: Findings) -> None:
        """Say which of them are frequent, have the name of a speaker, or begin with one of ``data.role_map``."""
        told = {name: count for name, count in self._names.most_common() if self._tells(name, count)}
        if told:
            text = f"{FIRST} {listed(told)} are part of the turn before them"
            findings.notes[f"{text}: data.role_map has no such speaker"] += max(told.values())
