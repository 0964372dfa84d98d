"""Which columns a row has: those that the settings name, or the usual ones."""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings
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


def detect_columns(
    columns: ColumnSettings,
    row: Mapping[str, Any],
    findings: Findings,
    first: bool = True,
    given: ColumnSettings | None = None,
) -> ColumnSettings:
    """``columns`` under the names that this row has: with other capitals, or, where no column is named, a usual one.

    A note says what was done. One that is named and not there is never replaced: it may be misspelt, and the usual one
    hold something else. Text columns are detected in the ``first`` row alone: later they may be anything.

    Args:
        given: the settings, where ``columns`` are what an earlier row has.
    """
    own = {name.strip().lower(): name for name in row if isinstance(name, str)}
    # A group may be rows of one text; a label is not a turn.
    others = {name.strip().lower() for name in named_columns(replace(columns, messages="", group=None))}
    changes, known = {}, _TEXTS if first and columns.messages == ColumnSettings.messages else ()
    for key in ("messages", "label", "labels", "id"):
        named, usual = getattr(columns, key), getattr(ColumnSettings, key)
        if named in row or POLICY_PLACE in named:  # a column for each policy
            continue
        unnamed = getattr(given or columns, key) == usual or key == "id"  # an id need not be there
        forms = [
            named,
            *([usual] if unnamed else []),
            *((*lists_of(row), *known, *(LISTS if first else ())) if key == "messages" and unnamed else ()),
        ]
        free = own if key != "messages" else own.keys() - others
        form = next((form for form in forms if all(name in free for name in form.lower().split(","))), None)
        if form is not None:
            actual = ",".join(own[name] for name in form.lower().split(","))
            changes |= {key: actual} if actual != named else {}
    changed = replace(columns, **changes)
    rest = _left(changed, own) if (given or columns).messages == ColumnSettings.messages else ""
    for key, name in changes.items():
        are = "are" if key.endswith("s") else "is"
        findings.notes[f"{key} {are} read from data.columns.{key}={name}"] += 1
    if rest:
        findings.notes[f"{rest}: data.columns.messages names no such turn"] = 1
    return changed


def fullest_row(source: str, columns: ColumnSettings) -> dict[str, Any]:
    """That of the first rows by which text columns are found: a row may leave out one that is empty, as a dump without
    nulls does. None of them where columns are named, the first row has a list, or every row has each column."""
    found = dict[int, dict[str, Any]]()
    if columns.messages != ColumnSettings.messages or source.startswith(HUB):
        return {}
    with contextlib.suppress(DataError):  # whoever reads the rows says why
        rows = (value for _, value in islice(read_rows(source, Findings()), _FIRST) if isinstance(value, dict))
        for number, row in enumerate(rows):
            form = detect_columns(columns, row, Findings()).messages
            if number == 0 and form in row and form.lower() not in _TEXTS:
                return {}
            if form.lower() in _TEXTS:
                found.setdefault(_TEXTS.index(form.lower()), row)
    return found[min(found)] if found else {}


def lists_of(row: Mapping[str, Any]) -> list[str]:
    """The usual columns that hold a list of messages; a text under such a name may be an id."""
    names = {name.strip().lower(): name for name in row if isinstance(name, str)}
    usual = (ColumnSettings.messages, *LISTS)
    return [name for name in usual if name in names and isinstance(unpacked(row[names[name]]), list)]


def require_seen(columns: ColumnSettings, seen: Collection[str], where: str, findings: Findings) -> None:
    """A finding where some text columns are there, and others in no row, so that they are misspelt, or not exported."""
    names = columns.messages.split(",")
    if (absent := [name for name in names if name not in seen]) and len(absent) < len(names):
        text = f"no column {absent[0]!r} in any row; there are {listed(sorted(seen))}"
        findings.add("COLUMN_MISSING", where, f"{text}; correct data.columns.messages, or write it empty")


def _left(columns: ColumnSettings, own: Mapping[str, str]) -> str:
    """What of a row may be a turn and is not read, in words; ``own`` are its columns, by names in small letters."""
    if not all(name in own.values() for name in columns.messages.split(",")):
        return ""
    turns = (*CONTEXT[columns.messages in own.values() :], *_ASKED, *_REPLIES)  # "system" is read before one column
    taken = named_columns(columns)
    left = [own[word] for word in turns if word in own and own[word] not in taken]
    return f"{listed(left)} {'are' if len(left) > 1 else 'is'} not read" if left else ""


def own_columns(columns: ColumnSettings, row: Mapping[str, Any], findings: Findings) -> ColumnSettings:
    """``columns``; of a row that ``alora label`` wrote, alora's own in place of those that are not there."""
    kinds = {"messages": list, "labels": dict, "verdicts": dict}
    if not all(isinstance(row.get(name), kind) for name, kind in kinds.items()):
        return columns
    usual, changes = ColumnSettings(), dict[str, Any]()
    if columns.messages not in row and not all(name in row for name in columns.messages.split(",")):
        changes["messages"] = usual.messages
    named = {columns.label, *(columns.label.replace(POLICY_PLACE, policy) for policy in row["labels"])}
    if named.isdisjoint(row) and (columns.labels not in row or named_alone(columns)):
        changes |= {"label": usual.label, "labels": usual.labels}
    if columns.group is not None and columns.group not in row:
        changes["group"] = None
    if not changes:
        return columns
    ungrouped = ", and is of no group of data.columns.group" if "group" in changes else ""
    findings.notes[f"a row of alora label is read by its own columns{ungrouped}"] += 1
    return replace(columns, **changes)
