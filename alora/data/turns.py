"""One row as a conversation: its columns' cells as turns, by the layout of its source."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.dialects import Items
from alora.data.files import PRINTED, kind, listed, unpacked
from alora.data.findings import Findings
from alora.data.first_rows import ITEMS, TEXTS, TRANSCRIPT, cell_of, has, items_of, named_columns
from alora.data.formats import ASKED, REPLIES, Layout
from alora.data.messages import Conversation
from alora.data.roles import column_role, key_of, role_note
from alora.data.transcripts import seen, split
from alora.text import lone_surrogate

GATHER = "one row is one conversation: gather a conversation's turns into messages"


def read_row(
    row: Any, where: str, layout: Layout, settings: DataSettings, findings: Findings, openers: Counter[str]
) -> Conversation | None:
    """The conversation in one row by ``layout``; ``openers`` counts the names of lines that are no speakers."""
    columns = layout.columns
    if not isinstance(row, dict):
        findings.add("ROW_KIND", where, f"a row is an object with {columns.messages!r}, not {kind(row)}")
        return None
    before, items = findings.count, Items(settings, findings, where)
    if missing := [name for name in layout.names if not has(row, name)]:
        aside = {role for name in row if isinstance(name, str) and row[name] and name not in named_columns(columns)
                 and (key_of(name) in (*ASKED, *REPLIES)) and (role := column_role(name))}  # fmt: skip
        if len(missing) == len(layout.names) or (aside and {None, *aside} & {column_role(name) for name in missing}):
            text = f"no column {missing[0]!r}; the row has {listed(row)}; {_mend(row, columns)}"
            findings.add("COLUMN_MISSING", where, text)
            return None
    given = {name: cell for name in layout.names if not _nothing(cell := cell_of(row, name))}
    for name in layout.names if given else ():
        if name not in given:
            findings.notes[f"nothing is in column {name!r}, so the row has a message less"] += 1
        else:
            _Cell(name, layout, settings, findings, where, openers).read(given[name], items)
    _system_first(row, items, layout, findings, where)
    if findings.count == before and all(not message.text.strip() for message in items.messages):
        if settings.skip_empty:
            findings.notes["a row without any text is left out (data.skip_empty)"] += 1
            return None
        problem = (
            "every message is empty; give it a text"
            if given
            else f"{columns.messages!r} is empty; give it at least one message"
        )
        findings.add("EMPTY", where, f"{problem}, or leave it out (of labelled rows: data.skip_empty=true)")
    name = row.get(columns.id)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        findings.add("ID_KIND", where, f"{columns.id!r} is {kind(name)}; an id is a text or a number")
    elif isinstance(name, str) and lone_surrogate(name) is not None:
        findings.add("NOT_UNICODE", where, f"{columns.id!r} holds a lone surrogate, which is not Unicode text")
    if findings.count > before:
        return None
    return Conversation(where if name is None else str(name), tuple(items.messages))


def _nothing(cell: Any) -> bool:
    return cell in (None, [], {}) or (isinstance(cell, str) and not cell.strip())


@dataclass(frozen=True)
class _Cell:
    """Reads one column's cell of a row into turns."""

    name: str
    layout: Layout
    settings: DataSettings
    findings: Findings
    where: str
    openers: Counter[str]

    def read(self, cell: Any, items: Items) -> None:
        """Add its turns to ``items``."""
        usual = self.name == ColumnSettings.messages
        held = items_of(cell) if self.layout.kinds.get(self.name) == ITEMS or not isinstance(cell, str) else None
        if isinstance(cell, int | float):
            text = f"{self.name!r} is {kind(cell)}; a turn in a column is a text: write it in quotes"
            self.findings.add("MESSAGES_KIND", self.where, text)
        elif held is not None:
            role = column_role(self.name) if len(self.layout.names) > 1 else None
            alone = len(held) == 1 and isinstance(held[0], dict) and not {"role", "from", "type"} & held[0].keys()
            items.read([{**held[0], "role": role}] if alone and role else held)
        elif isinstance(cell, str) and PRINTED.match(cell) and cell.lstrip()[0] == "[" and unpacked(cell) is cell:
            text = "messages that are cut short, or no JSON; write them as JSON, by json.dumps"
            self.findings.add("MESSAGES_KIND", self.where, text, f"{self.name!r} is {kind(cell)}")
        elif isinstance(cell, str) and self._transcript(cell, items):
            return
        elif usual or not isinstance(cell, str):
            hint = " as JSON, by json.dumps" if isinstance(cell, str) else ""
            text = f'{self.name!r} is {kind(cell)}; messages are a list of {{"role": ..., "content": ...}}{hint}'
            self.findings.add("MESSAGES_KIND", self.where, text)
        elif role := self._role():
            items.read([{"role": role, "content": cell}])

    def _transcript(self, text: str, items: Items) -> bool:
        """Whether the text was a transcript, and is read, or refused where its speakers are not all known."""
        if self.layout.kinds.get(self.name) != TRANSCRIPT:
            return False
        role_map = self.settings.role_map
        turns, names = split(text, role_map), seen(text, role_map)
        unknown = [name for name, role in names.items() if role is None]
        if (turns and len({turn["role"] for turn in turns}) == 1 and unknown) or (not turns and any(names.values())):
            found = f"lines open with {listed(unknown or names)}, and they are not split"
            mend = (
                f"say who speaks: 'data.role_map={{{(unknown or ['NAME'])[0]}: user}}', or cut what stands before them"
            )
            self.findings.add("TRANSCRIPT", self.where, f"{found}; {mend}")
        elif turns:
            self.openers.update(unknown)
            for turn in turns:
                if turn["speaker"] in role_map:
                    self.findings.notes[role_note(turn["speaker"], turn["role"])] += 1
            items.read([{"role": turn["role"], "content": turn["content"]} for turn in turns])
        else:
            self.findings.notes["a text is one message: its first line opens with no speaker that is known"] += 1
            return False
        return True

    def _role(self) -> str | None:
        """Who speaks in a text column: its name or ``data.role_map`` says so; where no name does, they take turns."""
        names, role_map = self.layout.names, self.settings.role_map
        roles = [role_map.get(name) or column_role(name) for name in names]
        role = roles[names.index(self.name)]
        if self.name in role_map:
            self.findings.notes[role_note(self.name, role_map[self.name])] += 1
            return role
        if role is None and any(roles):
            text = f"who speaks in {self.name!r}? Its name does not say so, and those of other columns do"
            mend = f"say it: 'data.role_map={{{self.name}: ROLE}}', each of user, assistant, system or tool"
            self.findings.add("ROLE_UNKNOWN", self.where, f"{text}; {mend}")
            return None
        role = role or ("user", "assistant")[names.index(self.name) % 2]
        if key_of(self.name) not in TEXTS and not (column_role(self.name) and len(self.name.split("_")) == 1):
            self.findings.notes[f"column {self.name!r:.40} is read as {role}"] += 1
        return role


def _system_first(row: Mapping[str, Any], items: Items, layout: Layout, findings: Findings, where: str) -> None:
    """Put the row's ``system`` before its messages, where Anthropic, Bedrock and LLaMA-Factory have it."""
    keys = ("system", "instructions") if "input" in layout.names else ("system",)
    known = named_columns(layout.columns)
    names = [name for name in row if isinstance(name, str) and key_of(name) in keys and row[name] and name not in known]
    if not names:
        return
    name = min(names, key=lambda name: name != key_of(name))
    system = parts if isinstance(parts := unpacked(row[name]), list) else row[name]
    if not isinstance(system, str | list):
        findings.notes[f"{name!r} is not read: it is no text"] += 1
        return
    own = [message.text.strip() for message in items.messages if message.role == "system"]
    rest, items.messages = items.messages, []
    items.read([{"role": "system", "content": system}], repr(name))
    text = items.messages[0].text.strip() if items.messages else ""
    if text and own and text not in own:
        problem = f"{name!r} differs from the system message in {layout.columns.messages!r}"
        findings.add("SYSTEM_DIFFERS", where, f"{problem}; remove one of them, or rename the column")
    elif text and not own:
        findings.notes[f"{name!r} is read as the first message, before {layout.columns.messages!r}"] += 1
    items.messages = [*(items.messages if text and not own else []), *rest]


def _mend(row: Mapping[str, Any], columns: ColumnSettings) -> str:
    """What to do where the columns that are read are not in ``row``."""
    keys = {key_of(name) for name in row if isinstance(name, str)}
    if keys & {"role", "from", "speaker", "sender", "author"} and keys & {"content", "value"}:
        return f"{GATHER}; or set data.columns.messages=NAME"
    known = named_columns(columns)
    turns = [name for name in row if isinstance(name, str) and column_role(name) and name not in known]
    if len(turns) < 2:
        return "set data.columns.messages=NAME, one for all rows of a file"
    return f"{listed(turns)} may be turns; set data.columns.messages=NAME,NAME, one for all rows of a file"
