"""Problems of rows, gathered to the end: every problem and where it is, before any compute is spent."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from alora.errors import DataError

ERROR, WARNING = "error", "warning"
SHOWN = 20
FIRST = ("warning: ", "lines that open with")  # of notes that no others may hide
_WARNED = re.compile(r"warning: (.+?): (.+) \[(\w+)\]")


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


def as_lines(notes: Mapping[str, int]) -> list[str]:
    """Notes as they are printed, each with its count: the most frequent, since rows with odd keys make one each, and
    before them those that begin with :data:`FIRST`."""
    frequent = sorted(notes.items(), key=lambda item: (not item[0].startswith(FIRST), -item[1]))
    kept = frequent[:SHOWN] if len(notes) > SHOWN else notes.items()
    lines = [f"{'' if text.startswith(FIRST[0]) else 'note: '}{text}" + f" ({n} times)" * (n > 1) for text, n in kept]
    return [*lines, *([f"note: ... and {len(notes) - SHOWN} more notes"] if len(notes) > SHOWN else [])]


def take_warnings(notes: Counter[str]) -> list[Finding]:
    """The warnings among ``notes``, which are taken out of them."""
    found = [match for text in [*notes] if (match := _WARNED.fullmatch(text)) and notes.pop(text)]
    return [Finding(WARNING, match[3], match[1], match[2]) for match in found]


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
