"""Which columns a row has: those that the settings name, or the usual ones."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import ASKED, CONTEXT, REPLIES, counted, key_of, listed, named_columns, unpacked, words_of
from alora.data.formats import CHUNK, UTF8_BOM, Row, parse_json
from alora.data.labels import named_alone
from alora.data.sources import HUB, read_rows
from alora.errors import DataError
from alora.findings import Findings

# Where no column "messages" is and none is named: lists of messages, then texts, whose names say who speaks.
LISTS = ("conversations", "conversation")
_FIRST = 50  # rows by which the columns are found
# A name with one of these words may be a turn's: "chat_history", "response_0".
_WORDS = {
    *(*CONTEXT, *ASKED, *REPLIES, "reply", "message", "turn", "bot", "generated", "generation", "prediction"),
    *("choice", "candidate", "chosen", "rejected", "target", "knowledge"),
}
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
    spelt, filled, lists = list[dict[str, str]](), Counter[str](), set[str]()
    for row in rows:
        spelt.append(_spelt(row))
        filled.update(low for low, name in spelt[-1].items() if isinstance(row[name], str) and row[name].strip())
        lists |= {name for name in LISTS if name in spelt[-1] and isinstance(unpacked(row[spelt[-1][name]]), list)}
    # A label is no turn; a group may be rows of one text.
    others = {key_of(name) for name in named_columns(replace(columns, messages="", group=None))}
    turns = [{low: name for low, name in own.items() if low not in others} for own in spelt]
    usual, changes = ColumnSettings(), dict[str, str]()
    for key in ("messages", "label", "labels", "id"):
        named = getattr(columns, key)
        if POLICY_PLACE in named or any(row.keys() >= set(named.split(",")) for row in rows):  # one for each policy
            continue
        forms = [named]
        if key == "messages" and named == usual.messages:  # a text under a list's name may be an id, so it comes last
            there = {*chain(*turns)} - ({"user"} & {key_of(columns.group or "")})  # an id then, and no turn
            texts = _texts(there) or _texts({low for low in there if filled[low] > len(spelt) / 10})  # not now and then
            if texts == ["prompt"] and any(filled[low] for low in there & {*REPLIES}):
                texts = []
            forms += [*(name for name in LISTS if name in lists), *texts, *LISTS]
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
    return {key_of(name): name for name in names} | {name: name for name in names if name == key_of(name)}


def _texts(names: Collection[str]) -> list[str]:
    """The usual text columns among ``names``; none where it is not plain which of them are the turns."""
    asked, replies = ([name for name in known if name in names] for known in (ASKED, REPLIES))
    if "text" in names:
        return [] if asked or replies else ["text"]
    if "user" in names and "assistant" in names:
        return ["user,assistant"] if not asked and replies == ["assistant"] else []
    if len(asked) == len(replies) == 1:
        return [f"{asked[0]},{replies[0]}"]
    return ["prompt"] if asked == ["prompt"] and not replies else []


def first_rows(source: str) -> list[dict[str, Any]]:
    """Those by which the columns of a file are found; none of what cannot be read: whoever reads it says why."""
    found = []
    with contextlib.suppress(DataError):
        for _, value in islice(read_rows(source, Findings()), _FIRST):
            found += [value] if isinstance(value, dict) else []
    return found


def with_first_rows(source: str, findings: Findings) -> tuple[list[dict[str, Any]], Iterator[Row]]:
    """Those by which the columns of ``source`` are found, and all of its rows. A file is read anew for them, so that
    its unreadable rows are told in their place; a data set of the hub, which has none, is loaded once."""
    rows = read_rows(source, findings)
    if not source.startswith(HUB):
        return first_rows(source), rows
    head = list(islice(rows, _FIRST))
    return [value for _, value in head], chain(head, rows)


def holds_rows(source: str, settings: DataSettings) -> bool:
    """Whether a .json file is lines of objects, or an array of rows, and not one conversation: its first item has their
    columns."""
    if not (source.lower().endswith(".json") and Path(source).is_file()):
        return False
    with contextlib.suppress(OSError, ValueError):  # the reader of conversations says why
        with Path(source).open("rb") as stream:
            start = stream.read(CHUNK).removeprefix(UTF8_BOM).lstrip()
        line, _, rest = start.partition(b"\n")
        if start.startswith(b"{"):
            return rest.lstrip().startswith(b"{") and isinstance(parse_json(line.decode()), dict)
        rows = first_rows(source)
        if not rows or not rows[0].keys().isdisjoint(("role", "from")):
            return False
        several = len(_spelt(rows[0]).keys() & {*ASKED, *REPLIES, "text"}) > 1  # be it plain or not which are the turns
        named, found = settings.columns.messages, find_columns(settings.columns, rows, Findings()).messages
        if found != named and key_of(found) in ("text", "prompt"):  # a message of another dialect may have these, too
            plain = {key_of(found), "system", "policy", *map(key_of, named_columns(settings.columns))}
            return _spelt(rows[0]).keys() <= plain
        return several or any(name in row for row in rows for name in found.split(","))
    return False


def require_seen(columns: ColumnSettings, seen: Collection[str], where: str, findings: Findings) -> None:
    """A finding where some text columns are there, and others in no row, so that they are misspelt, or not exported."""
    names = columns.messages.split(",")
    if (absent := [name for name in names if name not in seen]) and len(absent) < len(names):
        text = f"no column {absent[0]!r} in any row; there are {listed(sorted(seen))}"
        findings.add("COLUMN_MISSING", where, f"{text}; correct data.columns.messages, or add that column, be it empty")


def note_unread(columns: ColumnSettings, row: Mapping[str, Any], findings: Findings, looked_at: set[str]) -> None:
    """A note on the columns that are not read, those whose names may be a turn's first. Each is ``looked_at`` once, in
    a row where something is in it, and no number, which is no turn."""
    filled = {name for name, cell in row.items() if isinstance(cell, str | list | dict) and cell}
    fresh = filled - looked_at
    if not fresh:
        return
    looked_at |= fresh
    fresh -= named_columns(columns)
    left = [name for low, name in _spelt(row).items() if name in fresh and low not in ("system", "policy")]
    left.sort(key=lambda name: words_of(name).isdisjoint(_WORDS))
    if POLICY_PLACE in columns.label or written_by_alora(row):  # any other may be of labels, or alora's own
        texts = (name for name in left if not isinstance(row[name], dict))
        left = [name for name in texts if words_of(name) & _WORDS and "label" not in words_of(name)]
    if left:
        are = "are" if len(left) > 1 else "is"
        findings.notes[f"{counted(left)} {are} not read: data.columns.messages names no such turn"] = 1


def written_by_alora(row: Any) -> str | None:
    """The command of alora's that wrote ``row``, or None."""
    if not isinstance(row, dict):
        return None
    return next(
        (by for by, kinds in _OWN.items() if all(isinstance(row.get(name), kinds[name]) for name in kinds)), None
    )


def own_columns(settings: DataSettings, row: Mapping[str, Any], findings: Findings) -> DataSettings:
    """``settings``; for a row that alora wrote, with alora's own columns in place of those that are not there."""
    columns, by = settings.columns, written_by_alora(row)
    if by is None:
        return settings
    usual, changes = ColumnSettings(), dict[str, Any]()
    if columns.messages not in row and not all(name in row for name in columns.messages.split(",")):
        changes["messages"] = usual.messages
    labels = row.get("labels")
    policies = labels if isinstance(labels, dict | list) else ()
    named = {columns.label, *(columns.label.replace(POLICY_PLACE, str(policy)) for policy in policies)}
    if named.isdisjoint(row) and (columns.labels not in row or named_alone(columns)):
        changes |= {"label": usual.label, "labels": usual.labels}
    if columns.id not in row and columns.id != usual.id:
        changes["id"] = usual.id
    if columns.group is not None and columns.group not in row:
        changes["group"] = None
    if not changes:
        return settings
    ungrouped = ", and is of no group of data.columns.group" if "group" in changes else ""
    findings.notes[f"a row of alora {by} is read by its own columns{ungrouped}"] += 1
    return replace(settings, columns=replace(columns, **changes))
