"""The rows of a log, read once before anything is computed: how many, which, and their problems."""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import islice
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.conversation import Conversation, LabelledConversation, Rejected, stream_conversations
from alora.data.findings import Findings
from alora.errors import DataError

READING = ("columns", "format", "role_map", "reasoning", "skip_media")  # of data's settings
Row = tuple[Any, LabelledConversation | Rejected]  # its value, and what became of it


@dataclass
class Survey:
    """Counts of the rows that were read; ``wrong`` groups their problems, and has the notes on how they were read."""

    settings: DataSettings
    shard_rows: int | None = None  # each shard of this many rows has a digest of its own
    count: int = 0
    sound: int = 0  # of them, conversations
    timed: int = 0  # and of those, with a time
    wrong: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()
        self._shards: list[Any] = []

    def add(self, value: Any, row: LabelledConversation | Rejected) -> None:
        if self.shard_rows and self.count % self.shard_rows == 0:
            self._shards.append(hashlib.sha256())
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
        for digest in (self._digest, *self._shards[-1:]):
            digest.update(repr(digested).encode("utf-8", "surrogatepass"))

    @property
    def digest(self) -> str:
        """Of all rows in their order, whatever file they stand in."""
        return self._digest.hexdigest()

    @property
    def shards(self) -> list[str]:
        return [digest.hexdigest() for digest in self._shards]


def survey(source: str, settings: DataSettings, shard_rows: int | None = None) -> Survey:
    """All rows of ``source``, read through."""
    counted = Survey(settings, shard_rows)
    for value, row in stream_conversations(source, settings, counted.wrong.notes):
        counted.add(value, row)
    if not counted.count:
        raise DataError(f"{source} holds no rows")
    if settings.columns.time and not counted.timed and counted.sound:
        raise DataError(f"{source}: no row has a {settings.columns.time!r}, which data.columns.time names")
    return counted


def read_again(rows: Iterable[Row], settings: DataSettings, digest: str, wrong: str) -> Iterator[Row]:
    """``rows`` once more. Where they have changed, DataError comes after the last row: use no row before the end."""
    counted = Survey(settings)
    for value, row in rows:
        counted.add(value, row)
        yield value, row
    if counted.digest != digest:
        raise DataError(wrong)


def changed(source: str, first: int, last: int) -> str:
    return (
        f"{source} changed while it was scored: rows {first} to {last} are not those that were read before; score a "
        "copy to which nothing writes"
    )


def time_of(value: Any, settings: DataSettings) -> str | None:
    """The row's time, as it is stored next to its verdicts."""
    time = value.get(settings.columns.time) if isinstance(value, dict) else None
    if time is None:
        return None
    return time.isoformat() if isinstance(time, date) else str(time)


def reading(settings: DataSettings) -> dict[str, Any]:
    """How rows are read, as plain JSON: kept with their verdicts, for those who read the same rows later."""
    return {name: value for name, value in asdict(settings).items() if name in READING}


def _of_defaults(given: object, usual: object, kept: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kept.items() if getattr(given, name) == getattr(usual, name)}


def _as_scored(settings: DataSettings, job: Mapping[str, Any]) -> DataSettings:
    """``settings``, with what ``job`` read its rows by in place of each default."""
    own = replace(settings, columns=replace(settings.columns, time=None))
    if (kept := job.get("reading")) is not None:
        columns = replace(own.columns, **_of_defaults(own.columns, ColumnSettings(), kept["columns"]))
        own = replace(own, **_of_defaults(own, DataSettings(), kept) | {"columns": columns})
    return replace(own, columns=replace(own.columns, time=job.get("time")))


def conversations_at(
    source: str, settings: DataSettings, job: Mapping[str, Any], wanted: Container[int]
) -> Iterator[tuple[int, Conversation]]:
    """Number and conversation of the ``wanted`` rows of the log that ``job`` scored; as :func:`read_again`."""
    settings = _as_scored(settings, job)
    rows = islice(stream_conversations(source, settings), job["rows"])  # others may have come behind them
    wrong = f"{source} holds other rows than those that were scored; give data= as alora score had it, and data.columns"
    for number, (_, row) in enumerate(read_again(rows, settings, job["rows_digest"], wrong)):
        if number in wanted and isinstance(row, LabelledConversation):
            yield number, row.conversation
