"""The first rows of a source: which columns they have, and what stands in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.dialects import ANSWERS, CALLS
from alora.data.files import unpacked
from alora.data.roles import key_of
from alora.data.transcripts import split

LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "contents", "turns", "chat_history",
         "history", "input", "inputs")  # fmt: skip  # an input may be any list
PAST = ("history", "chat_history")  # what came before the turns of other columns, where there are some
TEXTS = ("text", "transcript", "conversation", "conversations", "dialogue", "dialog", "chat", "sentence", "utterance",
         "comment", "comment_text", "tweet", "review", "post")  # fmt: skip
ITEMS, TRANSCRIPT, TEXT = "items", "transcript", "text"  # what a column's cells are


class First:
    """The first rows of a source: what their columns hold."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], settings: DataSettings, alone: bool = False) -> None:
        self.rows, self.settings, self._alone = rows, settings, alone
        usual, given = ColumnSettings(), settings.columns.messages
        self.named = given.split(",") if given != usual.messages else []
        others = {key_of(name) for name in named_columns(replace(settings.columns, messages="", group=None))}
        own = [name for row in rows for name in row if isinstance(name, str) and key_of(name) not in others]
        # A name in small letters comes before the same one in others.
        self.columns = {key_of(name): name for name in own} | {name: name for name in own if name == key_of(name)}
        self._kinds: dict[str, str] = {}

    def cells(self, name: str) -> list[Any]:
        """What stands in a column, and is not nothing."""
        return [cell for row in self.rows if not empty(cell := cell_of(row, name))]

    def kind(self, name: str) -> str:
        """Whether most cells of a column are lists of messages, transcripts, or plain texts."""
        return self._kinds.get(name) or self._kinds.setdefault(name, self._kind(name))

    def _kind(self, name: str) -> str:
        cells, wanted = self.cells(name), self.settings.format
        if wanted in (TRANSCRIPT, TEXT):
            return wanted
        own = self._alone and key_of(name) not in (*LISTS, "transcript")  # one text may be a user's, roles and all
        if own and not self.settings.role_map:
            cells = [cell for cell in cells if not isinstance(cell, str)]
        lists = sum(_holds_items(cell, key_of(name) in LISTS[:-2]) for cell in cells)
        if lists and (2 * lists >= len(cells) or name == "messages"):
            return ITEMS
        texts = [cell for cell in cells if isinstance(cell, str)]
        speakers = [name for name in self.settings.role_map if name not in self.named]
        turns = [split(text, self.settings.role_map) for text in texts]
        several = any(len({turn["role"] for turn in found}) > 1 for found in turns)
        if speakers and any(turns):
            return TRANSCRIPT
        return TRANSCRIPT if several and 2 * sum(map(bool, turns)) > len(texts) else TEXT

    @cached_property
    def list_column(self) -> str | None:
        """The one column of lists of messages, if there is one."""
        return next((name for name in self.single((*LISTS, *TEXTS)) if self.kind(name) == ITEMS), None)

    def single(self, usual: Iterable[str]) -> list[str]:
        """The columns that may hold whole conversations: the only one that is named, or those with ``usual`` names."""
        if self.named:
            return self.named if len(self.named) == 1 else []
        return [self.columns[name] for name in usual if name in self.columns]

    def dialect(self, name: str) -> str:
        """Whose form the messages of a column have."""
        for cell in self.cells(name):
            for item in items_of(cell) or ():
                if not isinstance(item, dict):
                    continue
                content = item.get("content")
                parts = content if isinstance(content, list) else []
                kinds = {part.get("type") for part in parts if isinstance(part, dict)}
                if "from" in item and "value" in item:
                    return "sharegpt"
                if item.get("type") in (*CALLS, *ANSWERS, "message") or kinds & {"input_text", "output_text"}:
                    return "responses"
                if kinds & {"tool_use", "tool_result", "thinking"}:
                    return "anthropic"
        return "openai"


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """What stands in a row's column, or below it (``input.messages``)."""
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for key in name.split("."):
        value = opened.get(key) if isinstance(opened := unpacked(value), dict) else None
    return value


def empty(cell: Any) -> bool:
    """Whether nothing stands in a cell."""
    return cell in (None, [], {}) or (isinstance(cell, str) and not cell.strip())


def has(row: Mapping[str, Any], name: str) -> bool:
    """Whether a row has a column."""
    return name in row or ("." in name and cell_of(row, name) is not None)


def items_of(cell: Any) -> list[Any] | None:
    """The messages that a cell holds: a list of them, one alone, or a request or answer of a chat; None for others."""
    value = unpacked(cell)
    if isinstance(value, dict) and isinstance(value.get("body"), dict):  # of a request or an answer
        value = value["body"]
    if not isinstance(value, dict):
        return value if isinstance(value, list) else None
    for key in ("messages", "contents", "output"):
        if isinstance(value.get(key), list):
            return value[key]
    if isinstance(value.get("choices"), list):
        return [choice.get("message") for choice in value["choices"][:1] if isinstance(choice, dict)]
    return [value] if {"content", "value", "tool_calls", "type"} & value.keys() else None


def _holds_items(cell: Any, of_lists: bool) -> bool:
    items = items_of(cell)
    if not isinstance(cell, str) or not items:
        return items is not None and not isinstance(cell, str)
    return of_lists or (isinstance(items[0], dict) and bool({"role", "from", "type", "speaker"} & items[0].keys()))


def named_columns(columns: ColumnSettings) -> set[str]:
    """Every column that the settings name."""
    return {name for names in vars(columns).values() if names for name in names.split(",")}
