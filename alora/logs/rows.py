"""The rows of a log, read once before anything is computed: how many, which, and what is wrong with them."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from alora.config.schema import DataSettings
from alora.data.conversation import Conversation, LabelledConversation, Rejected, stream_conversations
from alora.errors import DataError
from alora.findings import Findings


@dataclass
class Survey:
    """Rows that were read, counted; ``wrong`` groups what is wrong with them."""

    settings: DataSettings
    count: int = 0
    sound: int = 0  # of them, conversations
    timed: int = 0  # and of those, with a time
    wrong: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, value: Any, row: LabelledConversation | Rejected) -> None:
        """One more row."""
        self.count += 1
        digested: Any = row.where
        if isinstance(row, LabelledConversation):
            time = time_of(value, self.settings)
            digested = row.conversation, time
            self.sound, self.timed = self.sound + 1, self.timed + (time is not None)
        else:
            for finding in row.findings:
                part = finding.where.removeprefix(row.where).removeprefix(": ")
                self.wrong.add(finding.code, row.where, finding.problem, part)
        self._digest.update(repr(digested).encode("utf-8", "surrogatepass"))

    @property
    def digest(self) -> str:
        """Of all rows in their order, whatever file they stand in."""
        return self._digest.hexdigest()


def survey(source: str, settings: DataSettings) -> Survey:
    """All rows of ``source``, read through.

    Raises:
        DataError: there are none, or none has the column of times.
    """
    found = Survey(settings)
    for value, row in stream_conversations(source, settings):
        found.add(value, row)
    if not found.count:
        raise DataError(f"{source} holds no rows")
    if settings.columns.time and not found.timed and found.sound:
        raise DataError(f"{source}: no row has a {settings.columns.time!r}, which data.columns.time names")
    return found


def time_of(value: Any, settings: DataSettings) -> str | None:
    """The row's time, as it is stored next to its verdicts."""
    found = value.get(settings.columns.time) if isinstance(value, dict) else None
    if found is None:
        return None
    text = found.isoformat() if isinstance(found, date) else str(found)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a surrogate pair is no text of Parquet's


def conversations_at(
    source: str, settings: DataSettings, job: Mapping[str, Any], wanted: Container[int]
) -> Iterator[tuple[int, Conversation]]:
    """Number and conversation of the ``wanted`` rows of the log that ``job`` scored.

    Raises:
        DataError: these are other rows; said at the end, so use nothing of it before.
    """
    found = Survey(replace(settings, columns=replace(settings.columns, time=job["time"])))
    for number, (value, row) in enumerate(stream_conversations(source, settings)):
        found.add(value, row)
        if number in wanted and isinstance(row, LabelledConversation):
            yield number, row.conversation
    if found.digest != job["rows_digest"]:
        raise DataError(f"{source} holds other rows than those that were scored; give data= as alora score had it")
