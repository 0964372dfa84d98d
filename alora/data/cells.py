"""A row's messages as they stand in its cells: a list of them, a transcript in one text, or text columns as turns."""

import re
from collections.abc import Iterable
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.formats import parse_json, shortened
from alora.findings import Findings

ROLES = ("system", "user", "assistant", "tool")
ALIASES = {
    **dict.fromkeys(("human", "customer"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatbot", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation"), "tool"),
    "developer": "system",
}
_SPEAKERS = {"system": "system", **dict.fromkeys(("response", "completion", "output", "answer", "assistant"), ROLES[2])}
_SPEAKERS |= dict.fromkeys(("prompt", "instruction", "question", "user", "text"), "user")
_SPEAKERS |= dict.fromkeys(("input", "context", "document", "documents", "passage", "reference"), "user")
# A list of messages as Python prints it (pandas writes a cell so), or cut short: no JSON, and no text either.
_PRINTED = re.compile(r"""\s*\[\s*\{\s*['"](?:role|from|content|value)['"]\s*:""")
# A time stamp before a speaker, or none: "[10:00]", "2024-05-01T10:00Z |", "Mon 5/1/24, 10:00 PM -".
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}[.,]{0,2}[ \t])?+"
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d\d(?:\d\d)?)"
_TIME = r"\d{1,2}:\d\d(?:[:.,]\d{1,6}){0,2}(?:[^\S\n]?[AaPp]\.?[Mm]\.?|[ \t]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_WHEN = rf"{_DAY}(?:{_DATE}(?:[,T \t]{{1,2}}{_TIME})?|{_TIME}(?:,?[ \t]{_DATE})?)"
STAMP = rf"(?>(?:[\[(]{_WHEN}[\])]|{_WHEN}(?=[ \t]))[ \t]{{0,4}}(?:[-–—|][ \t]{{1,4}})?)?+"
# What may stand before a speaker where it is no stamp that alora knows: "**", "[12 May, 10:00]", but no mere words.
_AHEAD = r"^(?P<ahead>[^\n]{0,40}?)(?<!\w)"
GATHER = "one row is one conversation: gather a conversation's turns into messages"
STAYS_ONE = "a text with lines of a speaker of data.role_map stays one message: it opens with something else"


def raw_messages(row: dict[str, Any], where: str, settings: DataSettings, findings: Findings) -> list[Any] | None:
    """The row's messages as they stand. Columns of plain texts (``prompt,response``) are turns in that order."""
    column = settings.columns.messages
    names = [column] if column in row else column.split(",")
    missing = [name for name in names if name not in row]
    if missing:
        said = {name.strip().lower() for name, value in row.items() if isinstance(name, str) and isinstance(value, str)}
        is_turn = {"role", "from"} & said and {"content", "value"} & said
        mend = GATHER if is_turn else "set data.columns.messages=NAME"
        findings.add("COLUMN_MISSING", where, f"no column {missing[0]!r}; the row has {listed(row)}; {mend}")
        return None
    values = [row[name] for name in names]
    if len(names) == 1 and isinstance(value := unpacked(values[0]), list):
        return value
    if len(names) == 1 and isinstance(value, str) and (turns := spoken(value, settings.role_map)):
        return turns
    printed = len(names) == 1 and isinstance(values[0], str) and _PRINTED.match(values[0])
    texts = [(name, index, value) for index, (name, value) in enumerate(zip(names, values, strict=True)) if value]
    if column != ColumnSettings.messages and not printed and all(isinstance(value, str | None) for value in values):
        for name in {*names} - {name for name, _, _ in texts} if texts else ():
            findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
        for name in _roles_aside(row, settings) if len(names) == 1 else ():
            findings.notes[f"{name!r} is not read: {GATHER}"] += 1
        return [
            {"role": _SPEAKERS.get(name.strip().lower(), ROLES[1 + index % 2]), "content": text}
            for name, index, text in texts
        ]
    kinds = ", ".join(f"{name!r} is {kind(value)}" for name, value in zip(names, values, strict=True))
    if printed:  # the cell is given apart, so that all such rows are one finding
        text = "messages as Python prints them, or cut short; write them as JSON, by json.dumps"
        findings.add("MESSAGES_KIND", where, text, kinds)
        return None
    if len(names) == 1 and isinstance(values[0], str) and (speaking := unsplit_speakers(values[0], settings.role_map)):
        text = f"{STAYS_ONE} ({listed(speaking)}); cut what stands before the speakers, or name who speaks there"
        findings.add("MESSAGES_KIND", where, text)
        return None
    hint = " as JSON, by json.dumps" if isinstance(values[0], str) else ""
    findings.add("MESSAGES_KIND", where, f'{kinds}; messages are a list of {{"role": ..., "content": ...}}{hint}')
    return None


def _roles_aside(row: dict[str, Any], settings: DataSettings) -> list[str]:
    """The columns that say who speaks in a row, as in an export with one message a row."""
    names = [name for name in row if isinstance(name, str) and name.strip().lower() in ("role", "from")]
    roles = [(name, row[name]) for name in names if name not in named_columns(settings.columns)]
    return [name for name, role in roles if isinstance(role, str) and (role in settings.role_map or usual_role(role))]


def named_columns(columns: ColumnSettings) -> set[str]:
    """Every column that the settings name."""
    return {name for names in vars(columns).values() if names for name in names.split(",")}


def spoken(text: str, roles: Iterable[str]) -> list[dict[str, str]]:
    """The turns of a transcript, which open a line with one of ``roles`` and a colon, a time stamp before it or not;
    none for any other text."""
    before, *parts = re.split(rf"^[ \t\u200e]*{STAMP}({_any_of(roles)}):", text, flags=re.MULTILINE)
    if before.strip():
        return []
    return [{"role": role, "content": said.strip()} for role, said in zip(parts[::2], parts[1::2], strict=True)]


def unsplit_speakers(text: str, roles: Iterable[str]) -> list[str]:
    """Which of ``roles``, in any capitals, seem to speak in a text that :func:`spoken` does not split."""
    lines = re.finditer(rf"{_AHEAD}({_any_of(roles)}):(?!//)", text, re.MULTILINE | re.IGNORECASE)
    speaking = (line for line in lines if not re.search(r"[^\W\d_]", line["ahead"]) or re.search(r"\d", line["ahead"]))
    return list(dict.fromkeys(line[2] for line in speaking))


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names)) or "(?!)"


def usual_role(name: str) -> str | None:
    """The role that ``name`` stands for without a setting."""
    known = ALIASES.get(name.lower(), name.lower())
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
