"""A row's messages as they stand in its cells: a list of them, a transcript in one text, or text columns as turns."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from alora.config.arguments import quoted
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
CONTEXT = ("context", "input", "history", "document", "documents", "passage", "reference")
ASKED, REPLIES = ("prompt", "instruction", "question"), ("response", "completion", "output", "answer", "assistant")
_TURNS = {**dict.fromkeys((*ASKED, "text"), "user"), **dict.fromkeys((*REPLIES, "agent"), "assistant")}
SPEAKERS = {alias for alias, role in ALIASES.items() if role in ("user", "assistant")}
# Names of columns that say who speaks, so that no note need; a reference may be the user's document, or the answer.
_PLAIN = {*_TURNS, *CONTEXT, *ROLES, *SPEAKERS} - {"reference"}
# A list of messages as Python prints it (pandas writes a cell so), or cut short: no JSON, and no text either.
_PRINTED = re.compile(r"""\s*\[\s*\{\s*['"](?:role|from|content|value)['"]\s*:""")
# Any other that may be of messages, or of one, and is read as it stands.
_WRITTEN = re.compile(
    r"""(?:array\()?\[?\s*\{.{0,200}?['"](?:(?:role|from|speaker|content|messages|choices)['"]\s*:|type['"]\s*:\s*['"]text)""",
    re.DOTALL,
)
_CAMEL = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # where a word of a name begins
_WHO = {"role", "from", "speaker", "sender", "author"}  # columns of exports with one message a row
_OPENING = 300  # characters of a text by which it is told for messages
SHOWN = 8  # columns in a message
NAME_WORDS = 4  # of a speaker's name, and no sentence
# A time stamp before a speaker, or none: "[10:00]", "2024-05-01T10:00Z |", "Mon 5/1/24, 10:00 PM -".
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}[.,]{0,2}[ \t])?+"
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d\d(?:\d\d)?)"
_TIME = r"\d{1,2}:\d\d(?:[:.,]\d{1,6}){0,2}(?:[^\S\n]?[AaPp]\.?[Mm]\.?|[ \t]?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_WHEN = rf"{_DAY}(?:{_DATE}(?:[,T \t]{{1,2}}{_TIME})?|{_TIME}(?:,?[ \t]{_DATE})?)"
STAMP = rf"(?>(?:[\[(]{_WHEN}[\])]|{_WHEN}(?=[ \t]))[ \t]{{0,4}}(?:[-–—|][ \t]{{1,4}})?)?+"
LINE = "(?:^|(?<=[\r\x0b\x0c\x85\u2028\u2029]))"  # where one begins, by re.MULTILINE
INDENT, COLON = "[ \t\xa0\u202f\u3000\u200e\ufeff]*", "[ \t\xa0\u202f]{0,2}[:：]"
# What may stand before a speaker where it is no stamp that alora knows: "**", "[12 May, 10:00]", but no mere words.
_AHEAD = r"^(?P<ahead>[^\n]{0,40}?)(?<!\w)"
_BREAKS = re.compile(r"</?[a-z][^<>\n]{0,40}>|\\[rn]|[\r\x0b\x0c\x85\u2028\u2029|]", re.IGNORECASE)  # elsewhere
GATHER = "one row is one conversation: gather a conversation's turns into messages"
STAYS_ONE = "a text with lines of a speaker of data.role_map is not split: its first line opens with none, spelt so"
STAYS_WITHIN = "a turn of a transcript has a speaker of data.role_map within it: at no line's start, or spelt otherwise"


def raw_messages(row: dict[str, Any], where: str, settings: DataSettings, findings: Findings) -> list[Any] | None:
    """The row's messages as they stand. Columns of plain texts (``prompt,response``) are turns in that order."""
    column = settings.columns.messages
    names = [column] if column in row else column.split(",")
    missing = [name for name in names if name not in row]
    # One may be left out where nothing is in it, and no other is in its place.
    if missing and (len(missing) == len(names) or _in_place_of(missing, row, named_columns(settings.columns))):
        text = f"no column {missing[0]!r}; the row has {listed(row)}; {_mend(row, settings)}"
        findings.add("COLUMN_MISSING", where, text)
        return None
    values = [row.get(name) for name in names]
    if len(names) == 1:
        (cell,) = values
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return []
        listed_here = isinstance(value := unpacked(cell), list)
        if listed_here and (column == ColumnSettings.messages or not isinstance(cell, str)):
            return value
        if isinstance(cell, str) and (turns := spoken(cell, settings.role_map)):
            return turns
        # given apart, so that all such rows are one finding
        if isinstance(cell, str) and not listed_here and _PRINTED.match(cell):
            text = "messages as Python prints them, or cut short; write them as JSON, by json.dumps"
            findings.add("MESSAGES_KIND", where, text, f"{column!r} is {kind(cell)}")
            return None
    if column != ColumnSettings.messages and all(isinstance(value, str | None) for value in values):
        return _text_turns(row, names, where, settings, findings)
    if len(names) == 1 and isinstance(values[0], str) and (speaking := unsplit_speakers(values[0], settings.role_map)):
        text = f"{STAYS_ONE} ({listed(speaking)}); cut what stands before the speakers, or name who speaks there"
        findings.add("MESSAGES_KIND", where, text)
        return None
    kinds = ", ".join(f"{name!r} is {kind(value)}" for name, value in zip(names, values, strict=True))
    if column != ColumnSettings.messages and any(isinstance(value, int | float) for value in values):
        findings.add("MESSAGES_KIND", where, f"{kinds}; a turn in a column is a text: write it in quotes")
        return None
    hint = " as JSON, by json.dumps" if isinstance(values[0], str) else ""
    findings.add("MESSAGES_KIND", where, f'{kinds}; messages are a list of {{"role": ..., "content": ...}}{hint}')
    return None


def _text_turns(
    row: dict[str, Any], names: Sequence[str], where: str, settings: DataSettings, findings: Findings
) -> list[dict[str, str]] | None:
    """Columns of plain texts as turns, and notes on what is missing, or read otherwise than it may be meant."""
    texts = {name: row[name] for name in names if row.get(name)}
    for name in [name for name in names if name not in texts] if texts else ():
        findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
    for name in _roles_aside(row, settings) if len(names) == 1 else ():
        findings.notes[f"{name!r} is not read: {GATHER}"] += 1
    for name, text in texts.items():
        if _WRITTEN.match(text.lstrip()[:_OPENING]):
            findings.notes[f"messages in column {name!r}, as JSON or as Python prints them, are read as one text"] += 1
    roles = _column_roles(names, where, settings, findings)
    if roles is None:
        return None
    return [{"role": roles[names.index(name)], "content": text} for name, text in texts.items()]


def _mend(row: dict[str, Any], settings: DataSettings) -> str:
    """What to do where the columns that are read are not in ``row``."""
    keys = {name: key_of(name) for name in row if isinstance(name, str)}
    said = {key for name, key in keys.items() if isinstance(row[name], str)}
    address = any("@" in row[name] for name, key in keys.items() if key == "from" and key in said)
    by_name = "role" in said or ("from" in said and not address)
    if (by_name or _roles_aside(row, settings)) and {"content", "value"} & said:
        return GATHER
    known = named_columns(settings.columns)
    turns = [name for name, key in keys.items() if key in {*_TURNS, "user"} and name not in known]
    asked, replies = ([name for name in turns if keys[name] in known and " " not in name] for known in (ASKED, REPLIES))
    if len(turns) < 2:
        return "set data.columns.messages=NAME, one for all rows of a file"
    named = f"{asked[0]},{replies[0]}" if len(turns) == len(asked + replies) == 2 and asked and replies else "NAME,NAME"
    return f"{listed(turns)} may be turns; set data.columns.messages={named}, one for all rows of a file"


def _in_place_of(missing: Sequence[str], row: Mapping[str, Any], named: set[str]) -> bool:
    """Whether a column that no setting names holds what may be the turn of one that is missing, by their names."""
    roles = {_speaker(name) for name in missing if key_of(name) not in (*CONTEXT, "system")}
    aside = {_TURNS.get(key_of(name)) for name in row if isinstance(name, str) and name not in named and row[name]}
    return bool(aside - {None} and (None in roles or aside & roles))


def _column_roles(names: Sequence[str], where: str, settings: DataSettings, findings: Findings) -> list[str] | None:
    """Who speaks in each of the text columns: its name or ``data.role_map`` says so, or, where no name does, user and
    assistant take turns."""
    role_map = settings.role_map
    roles = [role_map.get(name) or _speaker(name) for name in names]
    findings.notes.update(role_note(name, role_map[name]) for name in names if name in role_map)
    unknown = [quoted(name) for name, role in zip(names, roles, strict=True) if role is None]
    if 0 < len(unknown) < len(names):
        text = f"who speaks in {' and '.join(unknown)}? Its name does not say so, and those of other columns do"
        mapped = ", ".join(f"{name}: ROLE" for name in unknown)
        mend = f"'data.role_map={{{mapped}}}', each of user, assistant, system or tool"
        findings.add("ROLE_UNKNOWN", where, f"{text}; say it: {mend}")
        return None
    found = [role or ("user", "assistant")[index % 2] for index, role in enumerate(roles)]
    for name, role in zip(names, found, strict=True):
        if name not in role_map and key_of(name) not in _PLAIN:
            findings.notes[f"column {shortened(name)} is read as {role}"] += 1
    return found


@lru_cache  # it is asked for the same columns in each row
def _speaker(name: str) -> str | None:
    """The role of a column by its name, or by its words (``bot_response``). A tool's aliases count in lists alone."""
    if key_of(name) in CONTEXT:
        return "user"
    for words in ({key_of(name)}, words_of(name) - {"text"}):
        roles = {_TURNS.get(word) or usual_role(word) for word in words if word not in ALIASES or word in SPEAKERS}
        roles |= {"user"} if words & {"input", "query", "request"} else set()  # of a bot, maybe: "model_input"
        if len(roles - {None}) == 1:
            return next(role for role in roles if role)
    return None


def key_of(name: str) -> str:
    """A name as it is compared: in any capitals, blanks around it or none."""
    return name.strip().lower()


@lru_cache
def words_of(name: str) -> frozenset[str]:
    """The words of a column's name (``bot_response``, ``botResponse``), each as it is and without a plural's ending."""
    words = re.findall(r"[^\W\d_]+", _CAMEL.sub("_", name).lower())
    return frozenset(form for word in words for form in (word, word.removesuffix("s"), re.sub("ies$", "y", word)))


def _roles_aside(row: dict[str, Any], settings: DataSettings) -> list[str]:
    """The columns that say who speaks in a row, as in an export with one message a row."""
    names = [name for name in row if isinstance(name, str) and key_of(name) in _WHO]
    roles = [(name, row[name]) for name in names if name not in named_columns(settings.columns)]
    return [
        name
        for name, role in roles
        if isinstance(role, str) and (role_of(role, settings.role_map) or key_of(role) in _TURNS)
    ]


def named_columns(columns: ColumnSettings) -> set[str]:
    """Every column that the settings name."""
    return {name for names in vars(columns).values() if names for name in names.split(",")}


def spoken(text: str, roles: Iterable[str]) -> list[dict[str, str]]:
    """The turns of a transcript, which open a line with one of ``roles`` and a colon, a time stamp before it or not;
    none for any other text."""
    opening = rf"{LINE}{INDENT}{STAMP}({_any_of(roles)}){COLON}"
    before, *parts = re.split(opening, text, flags=re.MULTILINE)
    if before.strip():
        return []
    return [{"role": role, "content": said.strip()} for role, said in zip(parts[::2], parts[1::2], strict=True)]


def unsplit_speakers(text: str, roles: Iterable[str]) -> list[str]:
    """Which of ``roles``, in any capitals, seem to speak in a text where :func:`spoken` does not split it."""
    lines = re.finditer(
        rf"{_AHEAD}({_any_of(roles)}){COLON}(?!//)", _BREAKS.sub("\n", text), re.MULTILINE | re.IGNORECASE
    )
    in_line = [
        it for line in text.splitlines() for it in _in_line(re.findall(rf"(\S)[ \t]{{1,4}}({_any_of(roles)}):", line))
    ]
    speaking = (line for line in lines if not re.search(r"[^\W\d_]", line["ahead"]) or re.search(r"\d", line["ahead"]))
    return list(dict.fromkeys([line[2] for line in speaking] + in_line))


def _in_line(found: list[tuple[str, str]]) -> list[str]:
    """Who of those found within a line speaks there: two of them, or one more than once, each behind a sentence."""
    behind = [name for before, name in found if before in ".!?"]
    names = [name for _, name in found]
    return names if len({*names}) > 1 or len(behind) > 1 else []


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names)) or "(?!)"


def role_note(name: Any, role: str) -> str:
    """The note on turns of ``name``."""
    return f"role {shortened(name)} is read as {role}"


def note_unspoken(role_map: Mapping[str, str], findings: Findings) -> bool:
    """Note where no text that was read is of a speaker of ``role_map``, and no note says that one stands within it;
    return whether it was noted."""
    told = {STAYS_ONE, STAYS_WITHIN, *(role_note(name, role) for name, role in role_map.items())}
    unspoken = told.isdisjoint(findings.notes)
    if unspoken:
        findings.notes[f"no text is of a speaker of data.role_map, spelt so: {listed(role_map)}"] += 1
    return unspoken


def role_of(name: str, role_map: Mapping[str, str]) -> str | None:
    """The role that ``name`` stands for: by ``data.role_map``, or without it."""
    return role_map.get(name) or usual_role(name)


def usual_role(name: str) -> str | None:
    """The role that ``name`` stands for without a setting."""
    known = key_of(name)
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
    return ", ".join(map(shortened, list(row)[:SHOWN])) or "no columns"


def counted(names: Sequence[str]) -> str:
    """:func:`listed`, and how many more there are."""
    return listed(names) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def kind(value: Any) -> str:
    """What a value is, for an error message."""
    return "missing or null" if value is None else f"{type(value).__name__} {shortened(value)}"
