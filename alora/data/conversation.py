"""Conversations: the typed rows, and how the rows of any source become them."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import listed, note_unspoken, unpacked
from alora.data.columns import LISTS, find_columns, note_unread, own_columns, require_seen, with_first_rows
from alora.data.formats import CUT_SHORT, parse_json
from alora.data.messages import Conversation, Message, conversation_of
from alora.data.openers import Openers
from alora.errors import DataError
from alora.findings import ERROR, Finding, Findings, located
from alora.reading import read_stream, read_whole

__all__ = ["Conversation", "LabelledConversation", "Message", "read_conversation", "stream_conversations"]


@dataclass(frozen=True, slots=True)
class LabelledConversation:
    """A conversation with a label per policy that it was labelled for, and ``where`` it stands (``train.jsonl:17``).

    Rows of one ``group`` (the same customer, the same thread) stay on one side of a split. ``source`` is the
    index of its file among several; in training the row's loss counts ``weight`` times. ``folds`` names, per policy in
    folds, the one whose adapter does not learn from the row and answers for it.
    """

    conversation: Conversation
    labels: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    group: str = ""
    source: int = 0
    weight: float = 1.0
    folds: Mapping[str, int] = field(default_factory=dict)


def read_conversation(
    source: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Conversation:
    """One conversation from a JSON file, or from standard input (``-``): an object with ``messages``, or their list.

    ``settings.columns`` names what the object holds; one with ``messages`` needs no other name. ``notes`` counts the
    values that were not read literally.
    """
    where = "standard input" if source == "-" else Path(source).name
    try:
        raw = read_stream(sys.stdin.buffer) if source == "-" else read_whole(Path(source))
        value = parse_json(raw.decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}; give a JSON file with messages, or -") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except ValueError as error:
        raise DataError(f'{where}: not JSON: {error}; give {{"messages": [...]}} or a list of messages') from error
    return parse_conversation(value, where, settings, notes)


def parse_conversation(
    value: Any, where: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Conversation:
    """One conversation from parsed JSON: an object with ``messages``, or their list; ``where`` names it in errors."""
    row = {ColumnSettings.messages: value} if isinstance(value, list) else value
    findings, settings = Findings(notes), _unskipped(settings)
    columns = settings.columns
    if isinstance(row, dict):
        names, own = columns.messages.split(","), row.get(ColumnSettings.messages)
        turns = isinstance(own, list) and any(isinstance(item, dict) for item in own)
        instead = turns and not isinstance(unpacked(row.get(names[0])), list)
        missing = any(name not in row for name in names) and ColumnSettings.messages in row
        if instead or missing:  # as it is, whatever the rows of the recipe are called
            columns = replace(columns, messages=ColumnSettings.messages)
        unread = [name for name in names if name in row] if instead else []
        if unread:
            findings.notes[f"messages are read from 'messages', and not from {listed(unread)}"] += 1
        found = find_columns(columns, [row], findings)
        if columns.messages == ColumnSettings.messages:
            note_unread(found, {name: cell for name, cell in row.items() if name not in unread}, findings, set())
        columns = found
        require_seen(columns, row.keys(), where, findings)
        row = _with_list(row, columns.messages) if columns.messages.lower() in LISTS else row
    settings = replace(settings, columns=columns)
    conversation = conversation_of(row, where, settings, findings)
    findings.raise_if_any(where)
    assert conversation is not None
    openers = Openers(settings.role_map)
    openers.add(row, conversation, columns.messages)
    openers.note(findings)
    openers.note_whole(findings)
    return conversation


def _unskipped(settings: DataSettings | None) -> DataSettings:
    """``settings`` without ``skip_empty``: each row has a verdict, or a reason why not."""
    return replace(settings or DataSettings(), skip_empty=False)


@dataclass(frozen=True)
class Rejected:
    """A row that is not a conversation, with every problem."""

    where: str
    findings: tuple[Finding, ...]


def stream_conversations(
    source: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Iterator[tuple[Any, LabelledConversation | Rejected]]:
    """Every row of ``source`` in its order, one in memory at a time: its value, and the conversation without labels, or
    why there is none. ``notes`` counts the values that were not read literally."""
    rejected = _ByRow(notes)
    for where, value, _, conversation in conversations(source, _unskipped(settings), rejected):
        own = rejected.rows.pop(where, None)
        yield from rejected.taken(source)
        if own is None and conversation is not None:
            yield value, LabelledConversation(conversation, where=where)
        else:
            yield value, Rejected(where, tuple(own or ()))
    if wrong := rejected.rows.pop(source, None):
        raise DataError(f"{source}: 1 problem", wrong)
    yield from rejected.taken(source)


class _ByRow(Findings):
    """Findings kept row by row, until they are taken."""

    def __init__(self, notes: Counter[str] | None) -> None:
        super().__init__(notes)
        self.rows: dict[str, list[Finding]] = {}

    def add(self, code: str, where: str, problem: str, part: str = "") -> None:
        self.count += 1
        self.rows.setdefault(where, []).append(Finding(ERROR, code, located(where, part), problem))

    def taken(self, source: str) -> Iterator[tuple[None, Rejected]]:
        """The rows that could not be read at all."""
        for where, findings in self.rows.items():
            if findings[0].problem.endswith(CUT_SHORT):
                raise DataError(f"{source}: 1 problem", findings)
            yield None, Rejected(where, tuple(findings))
        self.rows = {}


def conversations(
    source: str, settings: DataSettings, findings: Findings
) -> Iterator[tuple[str, Any, DataSettings, Conversation | None]]:
    """For each row of one source: where it stands, its value, the settings with its columns, and its conversation."""
    first, rows = with_first_rows(source, findings)
    found = replace(settings, columns=find_columns(settings.columns, first, findings))
    cells = [cell for row in first if (cell := row.get(found.columns.messages)) not in (None, "")]
    lists = sum(isinstance(unpacked(cell), list) for cell in cells)
    in_cells = 2 * lists > len(cells)  # of a table, as JSON; elsewhere such a text is a user's own
    if in_cells and found.columns.messages not in (ColumnSettings.messages, *LISTS) and isinstance(cells[0], str):
        findings.notes[f"messages are read from the JSON in column {found.columns.messages!r}"] += 1
    openers = Openers(settings.role_map)
    names = found.columns.messages.split(",") if settings.columns.messages == ColumnSettings.messages else ()
    seen, looked_at = set[str](), set[str]()
    for where, value in rows:
        own = found
        if isinstance(value, dict):
            if any(value.get(name) is not None for name in names):
                note_unread(found.columns, value, findings, looked_at)
            seen.update(value)  # in place, as |= is not with keys
            own = own_columns(found, value, findings)
            lists += own is not found
        row = _with_list(value, own.columns.messages) if in_cells else value
        conversation = conversation_of(row, where, own, findings)
        openers.add(row, conversation, own.columns.messages)
        yield where, value, own, conversation
    require_seen(found.columns, seen, source, findings)
    openers.note(findings)
    # A role's own name is noted nowhere.
    if openers.transcripts or (settings.role_map and not lists and not note_unspoken(settings.role_map, findings)):
        openers.note_whole(findings)


def _with_list(row: Any, column: str) -> Any:
    """``row`` with the list of messages that a cell holds as JSON."""
    cell = row.get(column) if isinstance(row, dict) else None
    return {**row, column: cells} if isinstance(cell, str) and isinstance(cells := unpacked(cell), list) else row
