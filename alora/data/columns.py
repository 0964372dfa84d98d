"""Which columns a row has: those that the settings name, or the usual ones."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import ASKED, CONTEXT, REPLIES, listed, named_columns, unpacked, words_of
from alora.data.labels import named_alone
from alora.data.sources import HUB, read_rows
from alora.errors import DataError
from alora.findings import Findings

# Where no column "messages" is and none is named: lists of messages, then texts, whose names say who speaks.
LISTS = ("conversations", "conversation")
_FIRST = 50  # rows by which the columns are found
# A name with one of these words may be a turn's: "chat_history", "response_0", "choices".
_WORDS = {*CONTEXT, *ASKED, *REPLIES, "choice", "chosen", "knowledge", "generation", "reply", "message"}
_OWN = {  # what the rows of alora's own commands hold
    "label": {"messages": list, "labels": dict, "verdicts": dict},
    "generate": {"messages": list, "label": str, "generated": dict},
}


def find_columns(columns: ColumnSettings, rows: Iterable[Mapping[str, Any]], findings: Findings) -> ColumnSettings:
    """``columns`` under the names that a source's first ``rows`` have, by which every row of it is read: with other
    capitals, or, where none is named, the first of the usual ones that a row has whole.

    A note says what was done. One that is named and not there is never replaced: it may be misspelt, and the usual one
    hold something else.
    """
    spelt, filled, lists = list[dict[str, str]](), set[str](), set[str]()
    for row in rows:
        spelt.append(_spelt(row))
        filled |= {low for low, name in spelt[-1].items() if row[name]}
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
            there = {*chain(*turns)}
            texts = _texts(there) or _texts(there & filled)
            forms |= dict.fromkeys((*(name for name in LISTS if name in lists), *texts, *LISTS))
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


def _spelt(row: Mapping[str, Any]) -> dict[str, str]:
    """The names of ``row`` by themselves in small letters; one that is written so comes before others."""
    names = [name for name in row if isinstance(name, str)]
    return {name.strip().lower(): name for name in names} | {
        name: name for name in names if name == name.strip().lower()
    }


def _texts(names: Collection[str]) -> list[str]:
    """The usual text columns among ``names``; none where it is not plain which of them are the turns."""
    asked, replies = ([name for name in known if name in names] for known in (ASKED, REPLIES))
    if "text" in names:
        return [] if asked or replies else ["text"]
    if not asked and "user" in names and replies == ["assistant"]:
        return ["user,assistant"]
    if len(asked) == len(replies) == 1:
        return [f"{asked[0]},{replies[0]}"]
    return ["prompt"] if asked == ["prompt"] and not replies else []


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
    """A note on what may be a turn and is not read: next to texts any other, next to a list those with such a name."""
    if not all(name in row for name in columns.messages.split(",")):
        return
    plain = isinstance(row.get(columns.messages, ""), str) and POLICY_PLACE not in columns.label
    taken, left = named_columns(columns) | {"system", "policy"}, []
    for low, name in _spelt(row).items():
        words = words_of(low)
        by_name = words & _WORDS and words.isdisjoint(("id", "label")) and not isinstance(row[name], int | float)
        left += [name] * bool(by_name or (plain and isinstance(row[name], str)))
    if left := [name for name in left if name not in taken]:
        are = "are" if len(left) > 1 else "is"
        findings.notes[f"{listed(left)} {are} not read: data.columns.messages names no such turn"] = 1


def own_columns(settings: DataSettings, row: Mapping[str, Any], findings: Findings) -> DataSettings:
    """``settings``; for a row that alora wrote, with alora's own columns in place of those that are not there."""
    columns = settings.columns
    by = next((by for by, kinds in _OWN.items() if all(isinstance(row.get(name), kinds[name]) for name in kinds)), None)
    if by is None:
        return settings
    usual, changes = ColumnSettings(), dict[str, Any]()
    if columns.messages not in row and not all(name in row for name in columns.messages.split(",")):
        changes["messages"] = usual.messages
    named = {columns.label, *(columns.label.replace(POLICY_PLACE, policy) for policy in row.get("labels") or ())}
    if named.isdisjoint(row) and (columns.labels not in row or named_alone(columns)):
        changes |= {"label": usual.label, "labels": usual.labels}
    if columns.id not in row:
        changes["id"] = usual.id
    if columns.group is not None and columns.group not in row:
        changes["group"] = None
    if not changes:
        return settings
    ungrouped = ", and is of no group of data.columns.group" if "group" in changes else ""
    findings.notes[f"a row of alora {by} is read by its own columns{ungrouped}"] += 1
    return replace(settings, columns=replace(columns, **changes))
