"""The rows of a log, read once before anything is computed: how many, which, and their problems."""

import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import islice
from typing import Any

from alora.config.saved import over
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import Conversation, LabelledConversation, Rejected, stream_conversations
from alora.data.findings import Findings
from alora.errors import DataError

READING = ("columns", "format", "role_map", "reasoning", "system", "skip_media")  # of data's settings


@dataclass
class Survey:
    """Counts of the rows that were read; ``wrong`` groups their problems, and has the notes on how they were read."""

    settings: DataSettings
    count: int = 0
    sound: int = 0  # of them, conversations
    timed: int = 0  # and of those, with a time
    wrong: Findings = field(default_factory=Findings)
    _digest: Any = field(default_factory=hashlib.sha256)

    def add(self, value: Any, row: LabelledConversation | Rejected) -> None:
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
    """All rows of ``source``, read through."""
    counted = Survey(settings)
    for value, row in stream_conversations(source, settings, counted.wrong.notes):
        counted.add(value, row)
    if not counted.count:
        raise DataError(f"{source} holds no rows")
    if settings.columns.time and not counted.timed and counted.sound:
        raise DataError(f"{source}: no row has a {settings.columns.time!r}, which data.columns.time names")
    return counted


def time_of(value: Any, settings: DataSettings) -> str | None:
    """The row's time, as it is stored next to its verdicts."""
    time = value.get(settings.columns.time) if isinstance(value, dict) else None
    return time.isoformat() if isinstance(time, date) else None if time is None else str(time)


def reading(settings: DataSettings) -> dict[str, Any]:
    """How rows are read, as plain JSON: kept with their verdicts, for those who read the same rows later."""
    return {name: value for name, value in asdict(settings).items() if name in READING}


def _as_scored(settings: DataSettings, job: Mapping[str, Any]) -> DataSettings:
    """``settings``, with what ``job`` read its rows by in place of each default."""
    own = replace(settings, columns=replace(settings.columns, time=None))
    if kept := job.get("reading"):
        own = over(own, DataSettings(**kept | {"columns": ColumnSettings(**kept["columns"])}), (), "data")
    return replace(own, columns=replace(own.columns, time=job.get("time")))


def conversations_at(
    source: str, settings: DataSettings, job: Mapping[str, Any], wanted: Container[int]
) -> Iterator[tuple[int, Conversation]]:
    """Number and conversation of the ``wanted`` rows of the log that ``job`` scored. Where the log holds other rows,
    DataError comes after the last one: use no row before the end."""
    counted = Survey(_as_scored(settings, job))
    rows = islice(stream_conversations(source, counted.settings), job["rows"])  # others may have come behind them
    for number, (value, row) in enumerate(rows):
        counted.add(value, row)
        if number in wanted and isinstance(row, LabelledConversation):
            yield number, row.conversation
    if counted.digest != job["rows_digest"]:
        raise DataError(
            f"{source} holds other rows than those that were scored; give data= as alora score had it, and data.columns"
        )
