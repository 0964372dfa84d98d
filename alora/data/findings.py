"""Problems of rows, gathered to the end: every problem and where it is, before any compute is spent."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from alora.errors import DataError

ERROR, WARNING = "error", "warning"
SHOWN = 20
FIRST = "lines that open with"  # of the one note on words that may be somebody else's


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (``error``: no run) or doubtful (``warning``).

    ``code`` is stable: scripts may rely on it. ``where`` is a row (``train.jsonl:17``), the first of ``count`` rows
    that have the same problem, or the name of a split.
    """

    severity: str
    code: str
    where: str
    problem: str
    count: int = 1

    def __str__(self) -> str:
        if not self.where:  # of the findings that are not shown
            return self.problem
        if self.count > 1:
            return f"{self.count} rows: {self.problem} (first: {self.where}) [{self.code}]"
        return f"{self.where}: {self.problem} [{self.code}]"


class WarningNote(str):
    """The note that is a warning, as it is printed: it travels with the other notes."""

    finding: Finding

    @classmethod
    def of(cls, code: str, where: str, problem: str) -> Self:
        finding = Finding(WARNING, code, where, problem)
        note = cls(f"{WARNING}: {finding}")
        note.finding = finding
        return note


def as_lines(notes: Mapping[str, int]) -> list[str]:
    """Notes as they are printed, each with its count: the most frequent, since rows with odd keys make one each, and
    before them warnings and those that begin with :data:`FIRST`."""

    def first(text: str) -> bool:
        return isinstance(text, WarningNote) or text.startswith(FIRST)

    frequent = sorted(notes.items(), key=lambda item: (not first(item[0]), -item[1]))
    kept = frequent[:SHOWN] if len(notes) > SHOWN else notes.items()
    lines = [
        ("" if isinstance(text, WarningNote) else "note: ") + text + (f" ({times} times)" if times > 1 else "")
        for text, times in kept
    ]
    return [*lines, *([f"note: ... and {len(notes) - SHOWN} more notes"] if len(notes) > SHOWN else [])]


def take_warnings(notes: Counter[str]) -> list[Finding]:
    """The warnings among ``notes``, which are taken out of them."""
    warnings = [note for note in notes if isinstance(note, WarningNote)]
    for note in warnings:
        del notes[note]
    return [note.finding for note in warnings]


class Findings:
    """Problems in the order found, grouped by their text. All are counted, the first :data:`SHOWN` texts are kept.

    ``notes`` counts values that were not read literally; they are not problems.
    """

    def __init__(self, notes: Counter[str] | None = None) -> None:
        self.count = 0
        self.notes: Counter[str] = Counter() if notes is None else notes
        self._groups: dict[tuple[str, str], Finding] = {}
        self._last: dict[tuple[str, str], str] = {}

    def add(self, code: str, where: str, problem: str, part: str = "") -> None:
        """Note one problem; ``where`` is a row (``train.jsonl:17``), ``part`` a message of it. A row counts once."""
        key = code, problem
        known = self._groups.get(key)
        if known is not None and self._last[key] == where:
            return
        self.count += 1
        if known is None and len(self._groups) == SHOWN:
            return
        if known is None:
            known = Finding(ERROR, code, f"{where}: {part}" if part else where, problem, 0)
        self._groups[key], self._last[key] = replace(known, count=known.count + 1), where

    def all(self) -> list[Finding]:
        """The problems, and how many more rows have others."""
        more = self.count - sum(finding.count for finding in self._groups.values())
        rest = [Finding(ERROR, "MORE", "", f"... and {more} more", more)] if more else []
        return [*self._groups.values(), *rest]

    def raise_if_any(self, source: str) -> None:
        """Raise all problems as one :class:`alora.errors.DataError`."""
        if self.count:
            raise self.error(source)

    def error(self, source: str) -> DataError:
        return DataError(f"{source}: {self.count} problem{'s' if self.count > 1 else ''}", self.all(), self.count)
