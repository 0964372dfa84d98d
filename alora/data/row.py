"""One row as a conversation: its columns' cells as turns, by the layout of its source."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.dialects import Items
from alora.data.files import PRINTED, kind, listed, unpacked
from alora.data.findings import Findings
from alora.data.first_rows import ITEMS, TEXTS, TRANSCRIPT, cell_of, empty, has, items_of, named_columns
from alora.data.formats import ASKED, REPLIES, Layout
from alora.data.messages import Conversation
from alora.data.roles import column_role, key_of, role_note
from alora.data.transcripts import seen, split
from alora.text import lone_surrogate


def read_row(
    row: Any, where: str, layout: Layout, settings: DataSettings, findings: Findings, openers: Counter[str]
) -> Conversation | None:
    """The conversation in one row by ``layout``; ``openers`` counts the names of lines that are no speakers."""
    columns = layout.columns
    if not isinstance(row, dict):
        text = f'a row is an object, such as {{{columns.messages!r}: ..., "label": ...}}, not '
        findings.add("ROW_KIND", where, text + ("null" if row is None else type(row).__name__))
        return None
    before, turns = findings.count, _Turns(layout, settings, findings, where, openers)
    if missing := [name for name in layout.names if not has(row, name)]:
        aside = {role for name in _unnamed(row, columns)
                 if row[name] and key_of(name) in (*ASKED, *REPLIES) and (role := column_role(name))}  # fmt: skip
        if len(missing) == len(layout.names) or (aside and {None, *aside} & {column_role(name) for name in missing}):
            text = f"no column {missing[0]!r}; the row has {listed(row)}; {_mend(row, columns)}"
            findings.add("COLUMN_MISSING", where, text)
            return None
    nothing = ("null", "None", "nan", "NaN") if ITEMS in layout.kinds.values() else ()  # of a table, next to messages
    given = {name: cell for name in layout.names if not empty(cell := cell_of(row, name)) and cell not in nothing}
    for name in layout.names if given else ():
        if name in given:
            turns.read_cell(name, given[name])
        else:
            findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
    turns.system_first(row)
    if settings.system == "leave_out" and any(message.role == "system" for message in turns.messages):
        turns.messages = [message for message in turns.messages if message.role != "system"]
        findings.notes["a row's system turns are left out (data.system)"] += 1
    if findings.count == before and all(not message.text.strip() for message in turns.messages):
        if settings.skip_empty:
            findings.notes["a row without any text is left out (data.skip_empty)"] += 1
            return None
        problem = f"{columns.messages!r} is empty; give it at least one message"
        problem = "every message is empty; give it a text" if given else problem
        findings.add("EMPTY", where, f"{problem}, or leave it out (of labelled rows: data.skip_empty=true)")
    name = row.get(columns.id)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        findings.add("ID_KIND", where, f"{columns.id!r} is {kind(name)}; an id is a text or a number")
    elif isinstance(name, str) and lone_surrogate(name) is not None:
        findings.add("NOT_UNICODE", where, f"{columns.id!r} holds a lone surrogate, which is not Unicode text")
    if findings.count > before:
        return None
    return Conversation(where if name is None else str(name), tuple(turns.messages))


class _Turns(Items):
    """Reads a row's cells into turns."""

    def __init__(
        self, layout: Layout, settings: DataSettings, findings: Findings, where: str, openers: Counter[str]
    ) -> None:
        super().__init__(settings, findings, where)
        self._layout, self._openers = layout, openers

    def read_cell(self, name: str, cell: Any) -> None:
        """Add the turns of one column's cell."""
        kind_of_cells, text = self._layout.kinds.get(name), cell if isinstance(cell, str) else None
        held = items_of(cell) if kind_of_cells == ITEMS or text is None else None
        if held is not None:
            role = column_role(name) if len(self._layout.names) > 1 else None
            alone = len(held) == 1 and isinstance(held[0], dict) and not {"role", "from", "type"} & held[0].keys()
            self.read([{**held[0], "role": role}] if alone and role else held)
        elif text is not None and PRINTED.match(text) and text.lstrip()[0] == "[" and unpacked(text) is text:
            problem = "messages that are cut short, or no JSON; write them as JSON, by json.dumps"
            self._findings.add("MESSAGES_KIND", self._where, problem, f"{name!r} is {kind(text)}")
        elif text is not None and kind_of_cells == TRANSCRIPT and self._read_transcript(text):
            return
        elif name == ColumnSettings.messages or text is None:
            mend = 'messages are a list of {"role": ..., "content": ...}'
            mend += " as JSON, by json.dumps" if text is not None else ""
            if isinstance(cell, int | float):
                mend = "a turn in a column is a text: write it in quotes"
            self._add("MESSAGES_KIND", f"{name!r} is {kind(cell)}; {mend}")
        elif role := self._speaker(name):
            if kind_of_cells == ITEMS or PRINTED.match(text):
                self._findings.notes[f"cells of column {name!r} are messages or texts; a text is one message"] += 1
            self.read([{"role": role, "content": text}])

    def _read_transcript(self, text: str) -> bool:
        """Whether the text was a transcript, and is read, or refused where its speakers are not all known."""
        role_map, notes = self._settings.role_map, self._findings.notes
        turns, names = split(text, role_map), seen(text, role_map)
        unknown = [name for name, role in names.items() if role is None]
        if (turns and len({turn["role"] for turn in turns}) == 1 and unknown) or (not turns and any(names.values())):
            entry = f"{(unknown or ['NAME'])[0]}: user"
            mend = f"say who speaks: 'data.role_map={{{entry}}}', or cut what stands before them"
            self._add("TRANSCRIPT", f"lines open with {listed(unknown or names)}, and they are not split; {mend}")
        elif turns:
            self._openers.update(unknown)
            notes.update(role_note(turn["speaker"], turn["role"]) for turn in turns if turn["speaker"] in role_map)
            self.read([{"role": turn["role"], "content": turn["content"]} for turn in turns])
        else:
            notes["a text is one message: its first line opens with no speaker that is known"] += 1
        return bool(turns) or any(names.values())

    def _speaker(self, name: str) -> str | None:
        """Who speaks in a text column: its name or ``data.role_map`` says so; where no name does, they take turns."""
        names, role_map, notes = self._layout.names, self._settings.role_map, self._findings.notes
        if name in role_map:
            notes[role_note(name, role_map[name])] += 1
            return role_map[name]
        role = column_role(name)
        if role is None and any(role_map.get(other) or column_role(other) for other in names):
            text = f"who speaks in {name!r}? Its name does not say so, and those of other columns do"
            mend = f"say it: 'data.role_map={{{name}: ROLE}}', each of user, assistant, system or tool"
            self._add("ROLE_UNKNOWN", f"{text}; {mend}")
            return None
        plain = key_of(name) in TEXTS or (role and len(name.split("_")) == 1)
        role = role or ("user", "assistant")[names.index(name) % 2]
        if not plain:
            notes[f"column {name!r:.40} is read as {role}"] += 1
        return role

    def system_first(self, row: Mapping[str, Any]) -> None:
        """Put the row's ``system`` before its messages, where Anthropic, Bedrock and LLaMA-Factory have it."""
        columns, notes = self._layout.columns, self._findings.notes
        keys = ["system", "systeminstruction", "system_instruction"]
        keys += ["instructions"] * ("input" in self._layout.names)
        names = [name for name in _unnamed(row, columns) if key_of(name) in keys and row[name]]
        if not names:
            return
        name = min(names, key=lambda name: name != key_of(name))
        system = parts if isinstance(parts := unpacked(row[name]), list) else row[name]
        system = system.get("parts") if isinstance(system, dict) else system  # Gemini's
        if not isinstance(system, str | list):
            notes[f"{name!r} is not read: it is no text"] += 1
            return
        own = [message.text.strip() for message in self.messages if message.role == "system"]
        rest, self.messages = self.messages, []
        self.read([{"role": "system", "content": system}], repr(name))
        text = self.messages[0].text.strip() if self.messages else ""
        if text and own and text not in own:
            problem = f"{name!r} differs from the system message in {columns.messages!r}"
            self._add("SYSTEM_DIFFERS", f"{problem}; remove one of them, or rename the column")
        elif text and not own:
            notes[f"{name!r} is read as the first message, before {columns.messages!r}"] += 1
        self.messages = [*(self.messages if text and not own else []), *rest]


def _unnamed(row: Mapping[str, Any], columns: ColumnSettings) -> list[str]:
    """The columns of a row that no setting names."""
    known = named_columns(columns)
    return [name for name in row if isinstance(name, str) and name not in known]


def _mend(row: Mapping[str, Any], columns: ColumnSettings) -> str:
    """What to do where the columns that are read are not in ``row``."""
    keys = {key_of(name) for name in row if isinstance(name, str)}
    if keys & {"role", "from", "speaker", "sender", "author"} and keys & {"content", "value"}:
        return "one row is one conversation: gather its turns into messages; or set data.columns.messages=NAME"
    turns = list(filter(column_role, _unnamed(row, columns)))
    if len(turns) < 2:
        return "set data.columns.messages=NAME, one for all rows of a file"
    return f"{listed(turns)} may be turns; set data.columns.messages=NAME,NAME, one for all rows of a file"
