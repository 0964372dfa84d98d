"""Which columns a row has: those that the settings name, or the usual ones."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import CONTEXT, listed, named_columns, unpacked
from alora.data.labels import named_alone
from alora.data.sources import HUB, read_rows
from alora.errors import DataError
from alora.findings import Findings

# Where no column "messages" is and none is named: lists of messages, then texts, whose names say who speaks.
LISTS = ("conversations", "conversation")
_ASKED, _REPLIES = ("prompt", "instruction", "question"), ("response", "completion", "output", "answer", "assistant")
_PAIRS = ("prompt,response", "prompt,completion", "instruction,output", "question,answer", "user,assistant")
_PAIRS += tuple(pair for pair in (f"{one},{other}" for one in _ASKED for other in _REPLIES) if pair not in _PAIRS)
_TEXTS = ("system,prompt,response", *_PAIRS, "text", "prompt")
_FIRST = 50  # rows by which the columns are found


def find_columns(columns: ColumnSettings, rows: Iterable[Mapping[str, Any]], findings: Findings) -> ColumnSettings:
    """``columns`` under the names that a source's first ``rows`` have, by which every row of it is read: with other
    capitals, or, where none is named, the first of the usual ones that a row has whole.

    A note says what was done. One that is named and not there is never replaced: it may be misspelt, and the usual one
    hold something else.
    """
    spelt, lists = list[dict[str, str]](), set[str]()  # of each row: its names as written, by those in small letters
    for row in rows:
        spelt.append({name.strip().lower(): name for name in row if isinstance(name, str)})
        lists |= {name for name in LISTS if name in spelt[-1] and isinstance(unpacked(row[spelt[-1][name]]), list)}
    # A label is no turn; a group may be rows of one text.
    others = {name.strip().lower() for name in named_columns(replace(columns, messages="", group=None))}
    turns = [{low: name for low, name in own.items() if low not in others} for own in spelt]
    usual, changes = ColumnSettings(), dict[str, str]()
    for key in ("messages", "label", "labels", "id"):
        named = getattr(columns, key)
        if POLICY_PLACE in named or any(named in own.values() for own in spelt):  # a column for each policy
            continue
        forms = {named: None}
        if key == "messages" and named == usual.messages:  # a text under a list's name may be an id, so it comes last
            forms |= dict.fromkeys((*(name for name in LISTS if name in lists), *_TEXTS, *LISTS))
        found = (
            ",".join(own[name] for name in names)
            for names in (form.lower().split(",") for form in forms)
            for own in (turns if key == "messages" else spelt)
            if all(name in own for name in names)
        )
        if (actual := next(found, named)) != named:
            are = "are" if key.endswith("s") else "is"
            findings.notes[f"{key} {are} read from data.columns.{key}={actual}"] += 1
            changes[key] = actual
    return replace(columns, **changes)


def first_rows(source: str) -> Iterator[dict[str, Any]]:
    """Those by which the columns of ``source`` are found: the first 50, as a dump without nulls leaves empty ones out.

    None of a data set of the hub, whose rows all have the same, nor of what cannot be read: whoever reads it says why.
    """
    with contextlib.suppress(DataError):
        rows = read_rows(source, Findings()) if not source.startswith(HUB) else ()
        yield from (value for _, value in islice(rows, _FIRST) if isinstance(value, dict))


def require_seen(columns: ColumnSettings, seen: Collection[str], where: str, findings: Findings) -> None:
    """A finding where some text columns are there, and others in no row, so that they are misspelt, or not exported."""
    names = columns.messages.split(",")
    if (absent := [name for name in names if name not in seen]) and len(absent) < len(names):
        text = f"no column {absent[0]!r} in any row; there are {listed(sorted(seen))}"
        findings.add("COLUMN_MISSING", where, f"{text}; correct data.columns.messages, or write it empty")


def note_unread(columns: ColumnSettings, row: Mapping[str, Any], findings: Findings) -> None:
    """A note on what of a row may be a turn by its name and is not read."""
    if not all(name in row for name in columns.messages.split(",")):
        return
    own = {name.strip().lower(): name for name in row if isinstance(name, str)}
    turns = (*CONTEXT[columns.messages in row :], *_ASKED, *_REPLIES)  # "system" is read before one column
    taken = named_columns(columns)
    if left := [own[word] for word in turns if word in own and own[word] not in taken]:
        are = "are" if len(left) > 1 else "is"
        findings.notes[f"{listed(left)} {are} not read: data.columns.messages names no such turn"] = 1


def own_columns(settings: DataSettings, row: Mapping[str, Any], findings: Findings) -> DataSettings:
    """``settings``; for a row that ``alora label`` wrote, with alora's own columns in place of those not there."""
    columns = settings.columns
    kinds = {"messages": list, "labels": dict, "verdicts": dict}
    if not all(isinstance(row.get(name), kind) for name, kind in kinds.items()):
        return settings
    usual, changes = ColumnSettings(), dict[str, Any]()
    if columns.messages not in row and not all(name in row for name in columns.messages.split(",")):
        changes["messages"] = usual.messages
    named = {columns.label, *(columns.label.replace(POLICY_PLACE, policy) for policy in row["labels"])}
    if named.isdisjoint(row) and (columns.labels not in row or named_alone(columns)):
        changes |= {"label": usual.label, "labels": usual.labels}
    if columns.id not in row:
        changes["id"] = usual.id
    if columns.group is not None and columns.group not in row:
        changes["group"] = None
    if not changes:
        return settings
    ungrouped = ", and is of no group of data.columns.group" if "group" in changes else ""
    findings.notes[f"a row of alora label is read by its own columns{ungrouped}"] += 1
    return replace(settings, columns=replace(columns, **changes))
