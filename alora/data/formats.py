"""The formats of rows, one a line of :data:`FORMATS`: how each is recognised, and which columns its turns stand in."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alora.config.arguments import quoted
from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.files import listed
from alora.data.findings import ERROR, Finding
from alora.data.first_rows import ITEMS, PAST, TEXT, TEXTS, TRANSCRIPT, First, items_of
from alora.data.roles import column_role, key_of, usual_role
from alora.data.transcripts import seen
from alora.errors import DataError

FIRST = 50  # rows by which a file's format is recognised
ASKED = ("prompt", "instruction", "question", "query", "request")
REPLIES = ("response", "completion", "output", "answer", "reply")
LABELS = ("category", "intent", "class", "target", "label_text")  # where no column is "label" and none is named
SHARE = 4  # one of so many rows is no exception


@dataclass(frozen=True)
class Format:
    """One row of the table: its name (``data.format``), how it is recognised, how it becomes turns, and the columns of
    the turns in a source's first rows, or None."""

    name: str
    looks: str
    becomes: str
    find: Callable[[First], list[str] | None]


@dataclass(frozen=True)
class Layout:
    """How the rows of one source are read: the format, the columns by their names there, and what their cells are."""

    format: Format
    columns: ColumnSettings
    kinds: Mapping[str, str]
    named: bool = False  # by data.columns.messages

    @property
    def names(self) -> list[str]:
        """The columns of the turns."""
        return self.columns.messages.split(",")

    @property
    def pairs(self) -> bool:
        """Whether each row is two conversations, one that was chosen and one that was rejected."""
        return self.names[-1] == PAIR

    @property
    def why(self) -> str:
        """The columns, and what is in them."""
        held = {ITEMS: "messages", TRANSCRIPT: "transcripts", TEXT: "texts"}
        cells = {name.replace("|", "', '"): held[self.kinds.get(name, TEXT)] for name in self.names}
        return f"{self.format.looks}: " + ", ".join(f"'{name}' holds {what}" for name, what in cells.items())


PAIR = "chosen|rejected"  # one column of two rows


def _of_dialect(dialect: str) -> Callable[[First], list[str] | None]:
    def find(first: First) -> list[str] | None:
        column = first.list_column
        if column is None or (key_of(column) in PAST and _columns(first)):
            return None
        if dialect != first.dialect(column) and first.settings.format is None:
            return None
        output = first.columns.get({"input": "output", "inputs": "outputs"}.get(key_of(column), ""))
        return [column, output] if output and not first.named else [column]

    return find


def _completions(first: First) -> list[str] | None:
    """A prompt and what follows it: messages, or of preferences texts as well."""
    names = first.named or [
        first.columns[name] for name in ("prompt", "completion", "chosen", "rejected") if name in first.columns
    ]
    if len(names) > 1 and key_of(names[0]) == "prompt" and key_of(names[1]) in ("chosen", "rejected"):
        names = names[1:] if any(_begins(cell) for cell in first.cells(names[1])) else names  # the prompt is in both
    keys, texts = list(map(key_of, names)), any(first.kind(name) == TEXT for name in names)
    if not first.named and keys[-2:] == ["chosen", "rejected"]:
        labelled = {"label", "labels", *map(key_of, (first.settings.columns.label, first.settings.columns.labels))}
        both = not any(key_of(str(name)) in labelled for row in first.rows for name in row)
        names, keys = ([*names[:-2], PAIR] if both else names[:-1]), keys[:-1]
    right = keys in (["prompt", "chosen"], ["prompt", "rejected"], ["chosen"], ["rejected"])
    return names if right or (keys == ["prompt", "completion"] and not texts) else None


def _begins(cell: Any) -> bool:
    """Whether a cell's messages begin before the assistant's answer."""
    items = items_of(cell) or []
    return len(items) > 1 and isinstance(items[0], dict) and usual_role(str(items[0].get("role"))) != "assistant"


def _columns(first: First) -> list[str] | None:
    if first.named:
        return first.named if len(first.named) > 1 else None
    if "messages" in first.columns:
        return None
    there = [low for low in first.columns if not (low == "user" and low == key_of(first.settings.columns.group or ""))]
    often = [low for low in there if 10 * len(first.cells(first.columns[low])) > len(first.rows)]
    found = _pair(there) or _pair(often)
    said = {low: role for low in often if (role := column_role(first.columns[low]))}  # user_message, botReply
    found = found or ([*said] if [*said.values()] == ["user", "assistant"] else [])
    past = [name for name in PAST if name in often and first.kind(first.columns[name]) == ITEMS][:1]
    found = found or ([name for name in often if name in ASKED][:1] if past else [])
    return [first.columns[name] for name in (*past, *found)] if found else None


def _pair(names: Collection[str]) -> list[str]:
    """The two columns of turns among ``names``; none where it is not plain which they are."""
    asked, replies = ([name for name in known if name in names] for known in (ASKED, REPLIES))
    if asked == ["instruction"] and replies == ["output"] and "input" in names:  # Alpaca's
        return ["instruction", "input", "output"]
    if not asked and "input" in names:
        asked = ["input"]
    if "user" in names and "assistant" in names:
        return ["user", "assistant"] if not asked and not replies and "text" not in names else []
    replies += ["assistant"] if "assistant" in names else []
    return [asked[0], replies[0]] if len(asked) == len(replies) == 1 and "text" not in names else []


def _one_text(kind: str) -> Callable[[First], list[str] | None]:
    def find(first: First) -> list[str] | None:
        turns = {*ASKED, *REPLIES, "assistant"} & first.columns.keys()
        texts = () if turns else TEXTS
        if turns == {"prompt"} and "text" not in first.columns:
            texts = (*TEXTS, "prompt")
        names = first.single(("messages", *texts))
        right = [name for name in names if first.kind(name) == kind and not (kind == TEXT and name == "messages")]
        return right[:1] or None

    return find


FORMATS = (
    Format("responses", 'items with "type" (OpenAI Responses)', "messages, calls and their outputs",
           _of_dialect("responses")),
    Format("anthropic", "messages with blocks such as tool_use", "texts, calls, and answers of tools as turns",
           _of_dialect("anthropic")),
    Format("sharegpt", 'a list of {"from", "value"}', "turns; function_call is a call, observation its answer",
           _of_dialect("sharegpt")),
    Format("prompt_completion", "lists in prompt and completion, or chosen and rejected (TRL)",
           "one list after the other; chosen and rejected without a label are two rows, so labelled", _completions),
    Format("openai", 'a list of {"role", "content"}', "its messages, calls and tools' answers", _of_dialect("openai")),
    Format("columns", "a column for each turn, such as prompt and response", "a turn by each column's name", _columns),
    Format(TRANSCRIPT, "a conversation in one text, its speakers by name, tag or marker", "a turn for each speaker",
           _one_text(TRANSCRIPT)),
    Format(TEXT, "one text, as for classification", "one message of the user", _one_text(TEXT)),
)  # fmt: skip
_BY_NAME = {item.name: item for item in FORMATS}
OPENAI = Layout(_BY_NAME["openai"], ColumnSettings(), {"messages": ITEMS})


def recognise(rows: Sequence[Mapping[str, Any]], settings: DataSettings, source: str, alone: bool = False) -> Layout:
    """How the rows of ``source`` are read, by its first ones, or as ``data.format`` says. A
    text that stands ``alone`` is not taken apart unless its column's name or a setting says that it is a conversation.
    DataError where they are of another format than the named one, or unknown speakers are seen in their texts."""
    first = First(rows, settings, alone)
    columns = replace(settings.columns, **_other_columns(first))
    for item in FORMATS if settings.format is None else (_BY_NAME[settings.format],):
        if names := item.find(first):
            kinds = {name: first.kind(first.columns["chosen"] if name == PAIR else name) for name in names}
            if settings.format is None:
                _require_read(first, kinds, source)
            return Layout(item, replace(columns, messages=",".join(names)), kinds, bool(first.named))
    if settings.format is not None and rows:
        text = f"data.format={settings.format} is {_BY_NAME[settings.format].looks}, and the rows have"
        raise _error("FORMAT", source, f"{text} {listed(rows[0])}; name another, or set data.columns.messages")
    return Layout(_BY_NAME["openai"], columns, dict.fromkeys(columns.messages.split(","), ITEMS), bool(first.named))


def _require_read(first: First, kinds: Mapping[str, str], source: str) -> None:
    """DataError where more than a few texts have speakers who are not known."""
    for name in (name for name, kind in kinds.items() if kind == TEXT and name != PAIR):
        texts = [text for text in first.cells(name) if isinstance(text, str)]
        found = [names for text in texts if (names := seen(text, first.settings.role_map))]
        if len(kinds) > 1:  # a form has such lines as well
            found = [names for names in found if "assistant" in names.values()]
        if len(found) * SHARE > len(texts):
            counted = Counter(it for names in found for it in names.items()).most_common(4)
            roles = ", ".join(f"{quoted(name)}: {role or 'ROLE'}" for (name, role), _ in counted)
            text = f"{len(found)} of the first {len(texts)} texts in {name!r} have lines or tags of several speakers"
            mend = f"'data.role_map={{{roles}}}' splits texts that open so"
            mend = "cut what stands before them" if all(role for (_, role), _ in counted) else mend
            text += f", which are not read as turns; {mend}, or data.format=text leaves each whole"
            raise _error("TRANSCRIPT", source, text)


def _error(code: str, source: str, text: str) -> DataError:
    return DataError(f"{source}: 1 problem", [Finding(ERROR, code, source, text)])


def _other_columns(first: First) -> dict[str, str]:
    """The columns of labels and ids as the rows spell them."""
    usual, changes = ColumnSettings(), dict[str, str]()
    names = dict.fromkeys(name for row in first.rows for name in row if isinstance(name, str))
    for key in ("label", "labels", "id"):
        named = getattr(first.settings.columns, key)
        if POLICY_PLACE in named or named in names:
            continue
        forms = [named]
        if key == "label" and named == usual.label and first.settings.columns.labels not in names:
            forms += [name for name in LABELS if sum(key_of(other) in LABELS for other in names) == 1]
        found = (name for form in forms for name in names if key_of(name) == key_of(form))
        if actual := next(found, None):
            changes[key] = actual
    return changes
