"""Conversations and their labels: the typed rows, and how rows of any source become them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.sources import parse_json, read_rows, shortened
from alora.errors import DataError
from alora.findings import Findings
from alora.policy import Policy
from alora.reading import lone_surrogate, read_stream, read_whole

ROLES = ("system", "user", "assistant")
_OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "developer": "system"}


@dataclass(frozen=True)
class Message:
    """One turn: a role of :data:`ROLES` and its text, which is hostile until proven otherwise."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """Messages in order. ``id`` is the row's own, or its place in the file."""

    id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class LabelledConversation:
    """A conversation with a label per policy that it was labelled for; ``where`` is its place (``train.jsonl:17``)."""

    conversation: Conversation
    labels: Mapping[str, str] = field(default_factory=dict)
    where: str = ""


def read_labelled(source: str, settings: DataSettings, policy: Policy) -> list[LabelledConversation]:
    """The rows of ``source`` that are labelled for ``policy``, in their order.

    Args:
        source: a JSONL or Parquet file, or ``hub:NAME[:[CONFIG:]SPLIT]``.

    Raises:
        DataError: the source cannot be read, rows are wrong (all findings at once), or none is labelled for ``policy``.
    """
    rows = read_multilabelled(source, settings, [policy])
    labelled = [row for row in rows if policy.id in row.labels]
    if not labelled:
        raise DataError(f"{source}: none of its {len(rows)} rows is labelled for policy {policy.id!r}")
    return labelled


def read_multilabelled(
    source: str, settings: DataSettings, policies: Sequence[Policy], own: Mapping[str, Findings] | None = None
) -> list[LabelledConversation]:
    """Every row of ``source`` with its labels for ``policies``; a policy that a row has no label for is left out.

    A row with ``label`` belongs to the one policy, or, where there are several, to the one that its ``policy`` names.

    Args:
        own: per policy id, where to gather what is wrong with its labels alone; without it that is the source's fault.

    Raises:
        DataError: the source cannot be read, holds no rows, or rows are wrong (all findings at once).
    """
    findings = Findings()
    rows = list(_labelled_rows(source, settings, policies, findings, own or {}))
    findings.raise_if_any(source)
    if not rows:
        raise DataError(f"{source} holds no rows; give it at least one row per label")
    return rows


def read_conversation(source: str, columns: ColumnSettings | None = None) -> Conversation:
    """One conversation from a JSON file, or from standard input (``-``): an object with ``messages``, or their list.

    ``columns`` names what the object holds; one with ``messages`` needs no other name.

    Raises:
        DataError: it cannot be read, or is no conversation.
    """
    where = "standard input" if source == "-" else Path(source).name
    try:
        raw = read_stream(sys.stdin.buffer) if source == "-" else read_whole(Path(source))
        value = parse_json(raw.decode("utf-8-sig"))
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}; give a JSON file with messages, or -") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except ValueError as error:
        raise DataError(f'{where}: not JSON: {error}; give {{"messages": [...]}} or a list of messages') from error
    return parse_conversation(value, where, columns)


def parse_conversation(value: Any, where: str, columns: ColumnSettings | None = None) -> Conversation:
    """One conversation from parsed JSON: an object with ``messages``, or their list; ``where`` names it in errors.

    Raises:
        DataError: it is no conversation.
    """
    row = {ColumnSettings.messages: value} if isinstance(value, list) else value
    findings = Findings()
    columns = columns or ColumnSettings()
    named = {columns.messages, *columns.messages.split(",")}
    if isinstance(row, dict) and ColumnSettings.messages in row and not named & row.keys():
        columns = replace(columns, messages=ColumnSettings.messages)
    conversation = _conversation(row, where, columns, findings)
    findings.raise_if_any(where)
    assert conversation is not None
    return conversation


def _labelled_rows(
    source: str, settings: DataSettings, policies: Sequence[Policy], findings: Findings, own: Mapping[str, Findings]
) -> Iterator[LabelledConversation]:
    places: dict[str, str] = {}
    for where, value in read_rows(source, findings):
        before = findings.count
        conversation = _conversation(value, where, settings.columns, findings)
        labels = _labels(value, where, settings, policies, findings, own) if isinstance(value, dict) else {}
        if conversation is not None and conversation.id != where:
            if conversation.id in places:
                findings.add(
                    where, f"id {shortened(conversation.id)} is also at {places[conversation.id]}; make ids unique"
                )
            places.setdefault(conversation.id, where)
        if conversation is not None and findings.count == before:
            yield LabelledConversation(conversation, labels, where)


def _conversation(row: Any, where: str, columns: ColumnSettings, findings: Findings) -> Conversation | None:
    if not isinstance(row, dict):
        findings.add(where, f"a row is an object with {columns.messages!r}, not {_kind(row)}")
        return None
    raw = _raw_messages(row, where, columns.messages, findings)
    messages = [_message(item, f"{where}: message {number}", findings) for number, item in enumerate(raw or [], 1)]
    if raw is not None and not raw:
        findings.add(where, f"{columns.messages!r} is empty; a conversation has at least one message")
    elif messages and all(message is not None and not message.content.strip() for message in messages):
        findings.add(where, "every message is empty; remove the row")
    name = row.get(columns.id)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        findings.add(where, f"{columns.id!r} is {_kind(name)}; an id is a text or a number")
    elif isinstance(name, str) and lone_surrogate(name) is not None:
        findings.add(where, f"{columns.id!r} holds a lone surrogate, which is no Unicode text; replace it")
    complete = tuple(message for message in messages if message is not None)
    return Conversation(where if name is None else str(name), complete) if raw and len(complete) == len(raw) else None


def _raw_messages(row: dict[str, Any], where: str, column: str, findings: Findings) -> list[Any] | None:
    """The row's messages as they stand. Columns that hold plain texts (``prompt,response``) are turns in that order."""
    names = column.split(",") if column not in row else [column]
    missing = [name for name in names if name not in row]
    if missing:
        findings.add(where, f"no column {missing[0]!r}; the row has {_listed(row)}; set data.columns.messages=NAME")
        return None
    values = [row[name] for name in names]
    if column != ColumnSettings.messages and all(isinstance(value, str) for value in values):
        return [{"role": ROLES[1 + index % 2], "content": value} for index, value in enumerate(values)]
    if len(values) == 1 and isinstance(values[0], list):
        return values[0]
    kinds = ", ".join(f"{name!r} is {_kind(value)}" for name, value in zip(names, values, strict=True))
    findings.add(where, f'{kinds}; messages are a list of {{"role": ..., "content": ...}}')
    return None


def _message(item: Any, where: str, findings: Findings) -> Message | None:
    if not isinstance(item, dict):
        findings.add(where, f'is {_kind(item)}; write {{"role": ..., "content": ...}}')
        return None
    role, content = item.get("role"), item.get("content")
    before = findings.count
    if role not in ROLES:
        known = _OTHER_ROLES.get(role) if isinstance(role, str) else None
        hint = f"; did you mean {known!r}?" if known else ""
        findings.add(where, f"role is {_kind(role)}, not one of {', '.join(ROLES)}{hint}")
    if not isinstance(content, str):
        findings.add(where, f"content is {_kind(content)}; it must be a text")
    elif (surrogate := lone_surrogate(content)) is not None:
        findings.add(where, f"content has a lone surrogate at character {surrogate}, which is no Unicode text")
    return Message(role, content) if findings.count == before else None  # type: ignore[arg-type]


def _labels(
    row: dict[str, Any],
    where: str,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
) -> dict[str, str]:
    columns = settings.columns
    if columns.label not in row and columns.labels not in row:
        names = f"{columns.label!r} or {columns.labels!r}"
        findings.add(where, f"no column {names}; the row has {_listed(row)}; set data.columns.label=NAME")
        return {}
    many = row.get(columns.labels)
    if many is not None and not isinstance(many, dict):
        findings.add(where, f"{columns.labels!r} is {_kind(many)}; map each policy to its label or null")
        return {}
    if many is not None:  # null and absent mean "not annotated"
        pairs = [(policy, many[policy.id]) for policy in policies if many.get(policy.id) is not None]
    else:
        policy = policies[0] if len(policies) == 1 else _own_policy(row, where, policies, findings)
        pairs = [] if policy is None else [(policy, row.get(columns.label))]
    found = {policy.id: _label(value, where, policy, settings, own.get(policy.id, findings)) for policy, value in pairs}
    if many is not None:
        _refuse_contradiction(row, found, where, settings, policies, findings, own)
    return {name: label for name, label in found.items() if label is not None}


def _refuse_contradiction(
    row: dict[str, Any],
    found: Mapping[str, str | None],
    where: str,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
) -> None:
    """``label`` beside ``labels`` must say the same of the policy that it belongs to, where the row tells which."""
    columns, named = settings.columns, row.get("policy")
    owner = named if isinstance(named, str) else policies[0].id if len(policies) == 1 else None
    alone = _as_text(row.get(columns.label))
    alone = settings.label_map.get(alone, alone) if isinstance(alone, str) else alone
    among = found.get(owner) if owner is not None else None
    if alone is not None and among is not None and alone != among:
        text = f"{columns.label!r} says {shortened(alone)} and {columns.labels!r} says {among!r} of {owner!r}"
        own.get(str(owner), findings).add(where, f"{text}; remove one of them")


def _own_policy(row: dict[str, Any], where: str, policies: Sequence[Policy], findings: Findings) -> Policy | None:
    for policy in policies:
        if row.get("policy") == policy.id:
            return policy
    known = ", ".join(policy.id for policy in policies)
    findings.add(where, f"'policy' is {_kind(row.get('policy'))}; a row with one label names one of {known}")
    return None


def _label(value: Any, where: str, policy: Policy, settings: DataSettings, findings: Findings) -> str | None:
    value = _as_text(value)
    if not isinstance(value, str):
        findings.add(where, f"label of {policy.id!r} is {_kind(value)}; it must be one of {', '.join(policy.labels)}")
        return None
    label = settings.label_map.get(value, value)
    if label not in policy.labels:
        mapped = f" (mapped from {shortened(value)})" if label != value else ""
        findings.add(
            where,
            f"label {shortened(label)}{mapped} is not one of {', '.join(policy.labels)} of policy {policy.id!r}; "
            "fix the row, set data.label_map, or add the label to the policy",
        )
        return None
    return label


def _as_text(value: Any) -> Any:
    """A number or a truth value as the text that a label is."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _listed(row: dict[str, Any]) -> str:
    return ", ".join(map(shortened, list(row)[:8])) or "no columns"


def _kind(value: Any) -> str:
    if value is None:
        return "missing or null"
    return f"{type(value).__name__} {shortened(value)}"
