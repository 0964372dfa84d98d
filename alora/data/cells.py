"""A row's messages as they stand in its cells: a list of them, a transcript in one text, or text columns as turns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alora.config.schema import ROLES, ColumnSettings, DataSettings
from alora.data.formats import parse_json, shortened
from alora.findings import Findings

ALIASES = {
    **dict.fromkeys(("human", "customer"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatbot", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
    "developer": "system",
}
# What a verdict may hang on, next to text columns: the user says whether it is a turn.
CONTEXT = ("system", "context", "input", "history", "document", "documents", "passage", "reference")
_SPEAKERS = {
    **dict.fromkeys(("response", "completion", "output", "answer", "agent"), "assistant"),
    **dict.fromkeys(("prompt", "instruction", "question", "text", *CONTEXT[1:]), "user"),
}
_TURNS = _SPEAKERS.keys() - {*CONTEXT} | {"assistant"}
# A list of messages as Python prints it (pandas writes a cell so), or cut short: no JSON, and no text either.
_PRINTED = re.compile(r"""\s*\[\s*\{\s*['"](?:role|from|content|value)['"]\s*:""")
# A time stamp before a speaker, or none: "[10:00]", "2024-05-01T10:00Z |", "Mon 5/1/24, 10:00 PM -".
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}[.,]{0,2}[ \t])?+"
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d\d(?:\d\d)?)"
_TIME = r"\d{1,2}:\d\d(?:[:.,]\d{1,6}){0,2}(?:[^\S\n]?[AaPp]\.?[Mm]\.?|[ \t]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_WHEN = rf"{_DAY}(?:{_DATE}(?:[,T \t]{{1,2}}{_TIME})?|{_TIME}(?:,?[ \t]{_DATE})?)"
STAMP = rf"(?>(?:[\[(]{_WHEN}[\])]|{_WHEN}(?=[ \t]))[ \t]{{0,4}}(?:[-–—|][ \t]{{1,4}})?)?+"
_LINE = "(?:^|(?<=[\r\x85\u2028\u2029]))"  # where one begins, by re.MULTILINE
_INDENT, COLON = "[ \t\xa0\u202f\u3000\u200e\ufeff]*", "[ \t\xa0\u202f]{0,2}[:：]"
# What may stand before a speaker where it is no stamp that alora knows: "**", "[12 May, 10:00]", but no mere words.
_AHEAD = r"^(?P<ahead>[^\n]{0,40}?)(?<!\w)"
_BREAKS = re.compile(r"</?[a-z][^<>\n]{0,40}>|\\[rn]|[\r\x85\u2028\u2029|]", re.IGNORECASE)  # elsewhere
GATHER = "one row is one conversation: gather a conversation's turns into messages"
STAYS_ONE = "a text with lines of a speaker of data.role_map is not split: its first line opens with none, spelt so"
STAYS_WITHIN = "a turn of a transcript has a speaker of data.role_map within it: at no line's start, or spelt otherwise"


def raw_messages(row: dict[str, Any], where: str, settings: DataSettings, findings: Findings) -> list[Any] | None:
    """The row's messages as they stand. Columns of plain texts (``prompt,response``) are turns in that order."""
    column = settings.columns.messages
    names = [column] if column in row else column.split(",")
    missing = [name for name in names if name not in row]
    # One may be left out where nothing is in it, and no other is in its place.
    if len(missing) == len(names) or (missing and _turns_aside(row, {*names} | named_columns(settings.columns))):
        said = {name.strip().lower() for name, value in row.items() if isinstance(name, str) and isinstance(value, str)}
        is_turn = {"role", "from"} & said and {"content", "value"} & said
        mend = GATHER if is_turn else "set data.columns.messages=NAME, one for all rows of a file"
        findings.add("COLUMN_MISSING", where, f"no column {missing[0]!r}; the row has {listed(row)}; {mend}")
        return None
    values, alone = [row.get(name) for name in names], len(names) == 1
    cell = values[0] if alone else None
    if alone and (cell is None or (isinstance(cell, str) and not cell.strip())):
        return []
    if isinstance(value := unpacked(cell), list):
        return value
    if isinstance(value, str) and (turns := spoken(value, settings.role_map)):
        return turns
    printed = isinstance(cell, str) and _PRINTED.match(cell)
    texts = [(name, index, value) for index, (name, value) in enumerate(zip(names, values, strict=True)) if value]
    if column != ColumnSettings.messages and not printed and all(isinstance(value, str | None) for value in values):
        for name in {*names} - {name for name, _, _ in texts} if texts else ():
            findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
        for name in _roles_aside(row, settings) if alone else ():
            findings.notes[f"{name!r} is not read: {GATHER}"] += 1
        roles = _column_roles(names, settings.role_map, findings)
        return [{"role": roles[index], "content": text} for _, index, text in texts]
    kinds = ", ".join(f"{name!r} is {kind(value)}" for name, value in zip(names, values, strict=True))
    if printed:  # the cell is given apart, so that all such rows are one finding
        text = "messages as Python prints them, or cut short; write them as JSON, by json.dumps"
        findings.add("MESSAGES_KIND", where, text, kinds)
        return None
    if isinstance(cell, str) and (speaking := unsplit_speakers(cell, settings.role_map)):
        text = f"{STAYS_ONE} ({listed(speaking)}); cut what stands before the speakers, or name who speaks there"
        findings.add("MESSAGES_KIND", where, text)
        return None
    hint = " as JSON, by json.dumps" if isinstance(values[0], str) else ""
    findings.add("MESSAGES_KIND", where, f'{kinds}; messages are a list of {{"role": ..., "content": ...}}{hint}')
    return None


def _turns_aside(row: dict[str, Any], named: set[str]) -> bool:
    """Whether a column that no setting names holds what is a turn by its name."""
    return any(
        name.strip().lower() in _TURNS for name in row if isinstance(name, str) and name not in named and row[name]
    )


def _column_roles(names: Sequence[str], role_map: Mapping[str, str], findings: Findings) -> list[str]:
    """Who speaks in each of the text columns, by its name; where it says nothing, user and assistant alternate."""
    keys, other = [name.strip().lower() for name in names], {"user": "assistant", "assistant": "user"}
    own = [role_map.get(name) or _SPEAKERS.get(key) or _speaker(key) for name, key in zip(names, keys, strict=True)]
    turns = [n for n, key in enumerate(keys) if key not in CONTEXT and own[n] in (None, *other)]
    first = next((number for number, n in enumerate(turns) if own[n]), 0)  # which turn says whose it is
    role = (own[turns[first]] if turns else None) or "user"
    if len(turns) == 1 and own[turns[0]] is None and "user" in own[: turns[0]]:  # "history,reply"
        role = "assistant"
    role = other[role] if first % 2 else role
    findings.notes.update(role_note(name, role_map[name]) for name in names if name in role_map)
    for n in turns:
        if own[n] is None and len(names) > 1:
            findings.notes[f"column {shortened(names[n])} is read as {role}"] += 1
        own[n] = role = own[n] or role
        role = other[role]
    return [role or "user" for role in own]


def _speaker(key: str) -> str | None:
    """The role of a column by its name: an ``observation`` is a tool's turn in a list of messages alone."""
    role = usual_role(key)
    return role if key in ROLES or role in ("user", "assistant") else None


def _roles_aside(row: dict[str, Any], settings: DataSettings) -> list[str]:
    """The columns that say who speaks in a row, as in an export with one message a row."""
    names = [name for name in row if isinstance(name, str) and name.strip().lower() in ("role", "from")]
    roles = [(name, row[name]) for name in names if name not in named_columns(settings.columns)]
    return [name for name, role in roles if isinstance(role, str) and role_of(role, settings.role_map)]


def named_columns(columns: ColumnSettings) -> set[str]:
    """Every column that the settings name."""
    return {name for names in vars(columns).values() if names for name in names.split(",")}


def spoken(text: str, roles: Iterable[str]) -> list[dict[str, str]]:
    """The turns of a transcript, which open a line with one of ``roles`` and a colon, a time stamp before it or not;
    none for any other text."""
    opening = rf"{_LINE}{_INDENT}{STAMP}({_any_of(roles)}){COLON}"
    before, *parts = re.split(opening, text, flags=re.MULTILINE)
    if before.strip():
        return []
    return [{"role": role, "content": said.strip()} for role, said in zip(parts[::2], parts[1::2], strict=True)]


def unsplit_speakers(text: str, roles: Iterable[str]) -> list[str]:
    """Which of ``roles``, in any capitals, seem to speak in a text where :func:`spoken` does not split it."""
    lines = re.finditer(
        rf"{_AHEAD}({_any_of(roles)}){COLON}(?!//)", _BREAKS.sub("\n", text), re.MULTILINE | re.IGNORECASE
    )
    in_line = re.findall(rf"(?<=[.!?])[ \t]{{1,4}}({_any_of(roles)}):", text)
    speaking = (line for line in lines if not re.search(r"[^\W\d_]", line["ahead"]) or re.search(r"\d", line["ahead"]))
    return list(dict.fromkeys([line[2] for line in speaking] + (in_line if len(in_line) > 1 else [])))


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names)) or "(?!)"


def role_note(name: Any, role: str) -> str:
    """The note on turns of ``name``."""
    return f"role {shortened(name)} is read as {role}"


def role_of(name: str, role_map: Mapping[str, str]) -> str | None:
    """The role that ``name`` stands for: by ``data.role_map``, or without it."""
    return role_map.get(name) or usual_role(name)


def usual_role(name: str) -> str | None:
    """The role that ``name`` stands for without a setting."""
    known = name.strip().lower()
    known = ALIASES.get(known, known)
    return known if known in ROLES else None


def unpacked(value: Any) -> Any:
    """A list or an object that a table's cell holds as JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def listed(row: Iterable[str]) -> str:
    """The columns of a row, or other keys, for an error message."""
    return ", ".join(map(shortened, list(row)[:8])) or "no columns"


def kind(value: Any) -> str:
    """What a value is, for an error message."""
    return "missing or null" if value is None else f"{type(value).__name__} {shortened(value)}"
