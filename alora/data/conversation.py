"""Conversations from the rows of any source, in the format that its first rows have."""

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.dialects import IN_FIELDS, IN_TAGS
from alora.data.files import CHUNK, SPLITS, UTF8_BOM, Row, listed, parse_json
from alora.data.findings import Finding, Findings, WarningNote
from alora.data.first_rows import has, named_columns
from alora.data.formats import FIRST, OPENAI, PAIR, recognise
from alora.data.messages import Conversation, Message
from alora.data.roles import column_role, key_of
from alora.data.row import read_row
from alora.data.sources import read_rows
from alora.errors import DataError
from alora.text import read_stream, read_whole

__all__ = ["Conversation", "LabelledConversation", "Message", "read_conversation", "stream_conversations"]

_SPLITS = ("split", "set", "subset", "partition", "fold", "part", "dataset", "usage")  # columns that may say for what
_OWN = {  # what the rows of alora's own commands hold
    "label": {"messages": list, "labels": dict, "verdicts": dict},
    "generate": {"messages": list, "label": str, "generated": dict},
}


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


@dataclass(frozen=True)
class Rejected:
    """A row that is not a conversation, with every problem."""

    where: str
    findings: tuple[Finding, ...]


class SourceReader:
    """The rows of one source, read once: ``layout`` says how, by the first of them, ``columns`` what they are called.

    Rows that alora itself wrote are read by its own columns where the named ones are not there; ``by_alora`` says so.
    ``notes`` counts the values that were not read literally.
    """

    def __init__(self, source: str, settings: DataSettings, notes: Counter[str]) -> None:
        self._source, self._settings, self._notes = source, settings, notes
        rows = read_rows(source, notes)
        head = list(islice(rows, FIRST))
        self.first = [row.value for row in head if isinstance(row.value, dict)]
        usual, named, by = ColumnSettings(), settings.columns, written_by_alora(self.first)
        if by is not None and not all(_has_named(row, named) for row in self.first):
            group = named.group if named.group in self.first[0] else None
            self._settings = settings = replace(settings, columns=replace(usual, group=group))
            ungrouped = ", and are of no group of data.columns.group" if group != named.group else ""
            notes[f"the rows of {source}, which alora {by} wrote, are read by their own columns{ungrouped}"] += 1
        self.layout = recognise(self.first, settings, source)
        self.columns = replace(self.layout.columns, label="label") if self.layout.pairs else self.layout.columns
        self.by_alora = by is not None and (self.columns.label, self.columns.labels) == (usual.label, usual.labels)
        self._rows = chain(head, rows)
        self._before = Counter(notes)
        self._count, self._seen, self._unread = 0, set[str](), dict[str, None]()
        self._splits, self._openers = Counter[tuple[str, str]](), Counter[str]()

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            if not isinstance(value := row.value, dict):
                yield row
                continue
            self._count += 1
            self._seen.update(value)
            said = [(name, str(value[name])) for name in value if key_of(str(name)) in _SPLITS]
            self._splits.update((name, SPLITS.get(key_of(cell), "")) for name, cell in said)
            if not self.layout.pairs:
                yield row
                continue
            for name in filter(value.get, ("chosen", "rejected")):
                yield Row(f"{row.where} {name}", _chosen(value, name))

    def read(self, row: Row, findings: Findings) -> Conversation | None:
        """The conversation in one row; None where something is wrong with it; ``findings`` says what."""
        if row.problem is not None:
            findings.add(row.problem[0], row.where, row.problem[1])
            return None
        if not self.layout.named and isinstance(row.value, dict):
            self._unread |= dict.fromkeys(unread_columns(row.value, self.columns))
        return read_row(row.value, row.where, self.layout, self._settings, findings, self._openers)

    def close(self, findings: Findings) -> None:
        """What is to be said once all rows were read."""
        names, notes = [] if self.layout.pairs else self.layout.names, self._notes
        absent = [name for name in names if name.partition(".")[0] not in self._seen]
        if absent and len(absent) < len(names):
            text = f"no column {absent[0]!r} in any row; there are {listed(sorted(map(str, self._seen)))}"
            mend = "correct data.columns.messages, or add that column, be it empty"
            findings.add("COLUMN_MISSING", self._source, f"{text}; {mend}")
        note_unread(self._unread, notes)
        if often := [name for name, times in self._openers.most_common(8) if 100 * times >= self._count]:
            text = f"lines that open with {listed(often)} are part of the turn before them: data.role_map has no such"
            notes[f"{text} speaker"] += sum(self._openers[name] for name in often)
        left_out = [f"{form} is left out (data.reasoning)" for form in (IN_TAGS, IN_FIELDS)]
        if all(notes[text] > self._before[text] for text in left_out):
            text = "reasoning in tags and next to texts is left out"
            notes[WarningNote.of("REASONING_MIXED", self._source, text)] = 1
        for (name, use), count in self._splits.items() if self._settings.columns.split is None else ():
            if use == "test" and self._splits[name, "train"]:
                text = f"{count} test rows by {name!r} are read like others; data.columns.split={name} keeps them apart"
                notes[WarningNote.of("SPLIT_UNREAD", self._source, text)] = 1


def unread_columns(row: Mapping[str, Any], columns: ColumnSettings) -> list[str]:
    """The columns of a row with texts that are not read."""
    known = {*named_columns(columns), "chosen", "rejected", "system", "instructions", "policy", "split"}
    names = [name for name in row if isinstance(name, str) and not {name, key_of(name)} & known]
    texts = [name for name in names if row[name] and isinstance(row[name], str | list | dict)]
    of_labels = written_by_alora([row]) or POLICY_PLACE in columns.label  # which may be any, or alora's own
    return [name for name in texts if column_role(name) or not of_labels]


def note_unread(names: Collection[str], notes: Counter[str]) -> None:
    """Say which columns are not read, those first whose names are a turn's."""
    if names:
        ordered, are = sorted(names, key=lambda name: column_role(name) is None), "are" if len(names) > 1 else "is"
        notes[f"{listed(ordered)} {are} not read: data.columns.messages names no such turn"] = 1


def _chosen(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One of the two conversations of a row with ``chosen`` and ``rejected``, labelled so."""
    rest = {key: value for key, value in row.items() if key not in ("chosen", "rejected")}
    named = {} if row.get("id") is None else {"id": f"{row['id']}-{name}"}
    return rest | named | {PAIR: row[name], "label": name}


def _has_named(row: Mapping[str, Any], columns: ColumnSettings) -> bool:
    """Whether a row has the columns that the settings name for its turns and its label."""
    usual, ids = ColumnSettings(), row.get("labels")
    labels = [name for name in (columns.label, columns.labels) if name not in (usual.label, usual.labels)]
    forms = [name.replace(POLICY_PLACE, str(it)) for name in labels for it in (ids if isinstance(ids, dict) else [""])]
    turns = columns.messages.split(",") if columns.messages != usual.messages else []
    return all(has(row, name) for name in turns) and (not labels or any(form in row for form in forms))


def written_by_alora(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The command of alora's that wrote ``rows``, or None."""
    for by, kinds in _OWN.items():
        if rows and all(isinstance(row.get(name), kind) for row in rows for name, kind in kinds.items()):
            return by
    return None


def read_conversation(
    source: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Conversation:
    """One conversation from a JSON file, or from standard input (``-``): as :func:`parse_conversation`."""
    where = "standard input" if source == "-" else Path(source).name
    try:
        raw = read_stream(sys.stdin.buffer) if source == "-" else read_whole(Path(source))
        value = parse_json(raw.decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}; give a JSON file with messages, or -") from error
    except ValueError as error:
        remedy = 'give {"messages": [...]} or a list of messages, in UTF-8'
        raise DataError(f"{where}: not JSON: {error}; {remedy}") from error
    return parse_conversation(value, where, settings, notes)


def parse_conversation(
    value: Any, where: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Conversation:
    """One conversation from parsed JSON: an object with ``messages``, or what ``settings.columns`` names, or a list of
    messages. ``where`` names it in errors, and ``notes`` counts the values that were not read literally."""
    row = {ColumnSettings.messages: value} if isinstance(value, list) else value
    findings, settings = Findings(notes), replace(settings or DataSettings(), skip_empty=False)
    layout = OPENAI
    if isinstance(row, dict) and not (row.keys() == {"messages"} and isinstance(row["messages"], list)):
        names = settings.columns.messages.split(",")
        if not all(has(row, name) for name in names) and ColumnSettings.messages in row:  # whatever rows are called
            columns = replace(settings.columns, messages=ColumnSettings.messages)
            settings = replace(settings, columns=columns, format=None)
        layout = recognise([row], settings, where, alone=True)
        if not layout.named:
            note_unread(unread_columns(row, layout.columns), findings.notes)
    conversation = read_row(row, where, layout, settings, findings, Counter())
    findings.raise_if_any(where)
    assert conversation is not None
    return conversation


def stream_conversations(
    source: str, settings: DataSettings | None = None, notes: Counter[str] | None = None
) -> Iterator[tuple[Any, LabelledConversation | Rejected]]:
    """Every row of ``source`` in its order, one in memory at a time: its value, and the conversation without labels, or
    why there is none. ``notes`` counts the values that were not read literally."""
    settings, notes = replace(settings or DataSettings(), skip_empty=False), Counter() if notes is None else notes
    reader = SourceReader(source, settings, notes)
    for row in reader:
        findings = Findings(notes)
        if conversation := reader.read(row, findings):
            yield row.value, LabelledConversation(conversation, where=row.where)
        else:
            yield row.value, Rejected(row.where, tuple(findings.all()))
    reader.close(findings := Findings(notes))
    findings.raise_if_any(source)


@dataclass(frozen=True)
class Look:
    """What a source looks like: the name of its format, why it is that, and its first rows as they are read."""

    format: str
    why: str
    rows: list[str]


def look(source: str, settings: DataSettings, count: int = 3) -> Look:
    """How ``source`` is read, shown on ``count`` of its rows."""
    reader, shown = SourceReader(source, settings, Counter()), list[str]()
    for row in islice(reader, count):
        if conversation := reader.read(row, Findings()):
            end = -1 if settings.label_turn == "last" and not reader.by_alora else None  # which is the label
            turns = [replace(conversation, messages=(turn,)).excerpt(120) for turn in conversation.messages[:end]]
            shown.append(f"{row.where}: {' | '.join(' '.join(turn.split()) for turn in turns)}"[:500])
    return Look(reader.layout.format.name, reader.layout.why, shown)


def holds_rows(source: str, settings: DataSettings) -> bool:
    """Whether a .json file is lines of objects, or an array of rows, and not one conversation."""
    if not (source.lower().endswith(".json") and Path(source).is_file()):
        return False
    try:
        with Path(source).open("rb") as stream:
            start = stream.read(CHUNK).removeprefix(UTF8_BOM).lstrip()
        line, _, rest = start.partition(b"\n")
        if start.startswith(b"{"):
            return rest.lstrip().startswith(b"{") and isinstance(parse_json(line.decode()), dict)
        reader = SourceReader(source, settings, Counter())
    except (DataError, OSError, ValueError):
        return False  # the reader of conversations says why
    if not reader.first or {"role", "from", "speaker", "type"} & reader.first[0].keys():
        return False
    return any(has(row, name) for row in reader.first for name in reader.layout.names)
