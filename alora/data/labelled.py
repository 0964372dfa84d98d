"""Rows with the labels of policies, from one source or several."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alora.config.schema import ColumnSettings, DataSettings
from alora.data.columns import written_by_alora
from alora.data.conversation import LabelledConversation, conversations
from alora.data.formats import shortened
from alora.data.labels import as_text, plain, refuse_nobodys, row_labels
from alora.data.messages import Conversation, Message, ToolCall
from alora.data.sources import Source, each, named
from alora.data.spool import Spool
from alora.errors import DataError
from alora.findings import Findings
from alora.policy import Policy


def read_labelled(
    source: Source, settings: DataSettings, policy: Policy, findings: Findings | None = None
) -> list[LabelledConversation]:
    """The rows of ``source`` that are labelled for ``policy``, in their order.

    Args:
        source: a file, ``hub:NAME[:[CONFIG:]SPLIT]``, or several of them.
        findings: keeps the notes on how the rows were read.
    """
    rows = read_multilabelled(source, settings, [policy], findings=findings)
    labelled = [row for row in rows if policy.id in row.labels]
    if not labelled:
        raise none_labelled(source, len(rows), policy.id)
    return labelled


def read_multilabelled(
    source: Source,
    settings: DataSettings,
    policies: Sequence[Policy],
    own: Mapping[str, Findings] | None = None,
    findings: Findings | None = None,
) -> list[LabelledConversation]:
    """Every row of ``source`` with its labels for ``policies``; a row's ``labels`` lack the policies that it has no
    label for.

    The ``label`` of a row is of the policy that its ``policy`` names; where it names none, and no row of its file
    another, of the only policy.

    Args:
        own: per policy id, where to gather problems of its labels alone; without it they count against the source.
        findings: keeps the notes on how the rows were read.
    """
    findings = Findings() if findings is None else findings
    ids_seen: dict[str, str] = {}
    spool, rows = Spool(), []
    for number, file in enumerate(each(source)):
        rows += _labelled_rows(file, number, settings, policies, findings, own or {}, ids_seen, spool)
    findings.raise_if_any(named(source))
    if not rows:
        raise DataError(f"{named(source)} holds no rows; give it at least one row per label")
    return rows


def none_labelled(source: Source, rows: int, policy: str) -> DataError:
    """The error of a source without a row of ``policy``."""
    return DataError(
        f"{named(source)}: none of its {rows} rows is labelled for policy {policy!r} (where a row has a 'policy', its "
        "label is of that one, and where it has 'labels', they alone count; rename a column of these names that is "
        "something else)"
    )


def _labelled_rows(
    source: str,
    number: int,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
    ids_seen: dict[str, str],
    spool: Spool,
) -> Iterator[LabelledConversation]:
    """The rows of the ``number``-th source, valid while ``findings`` is empty; ``ids_seen`` has the ids of all sources,
    ``spool`` the messages."""
    whose: dict[str, list[str]] = {}
    own_words = {label for policy in policies for label in policy.labels}
    for where, value, known, conversation in conversations(source, settings, findings):
        if conversation is None and known.skip_empty:
            continue  # left out: what else is wrong with it does not matter
        of_alora = (known.columns.label, known.columns.labels) == (ColumnSettings.label, ColumnSettings.labels)
        if known.label_map and of_alora and written_by_alora(value):  # in the policy's words, maybe the data's, too
            kept = {word: label for word, label in known.label_map.items() if word not in own_words}
            known = replace(known, label_map=kept)
        labels = row_labels(value, where, known, policies, findings, own, whose) if isinstance(value, dict) else {}
        if conversation is not None and conversation.id != where:
            if conversation.id in ids_seen:
                twice = f"id {shortened(conversation.id)} is also at {ids_seen[conversation.id]}"
                findings.add("ID_TWICE", where, "make ids unique, or name another column: data.columns.id=NAME", twice)
            ids_seen.setdefault(conversation.id, where)
        group = _group(value, where, known.columns.group, findings)
        if conversation is not None:
            yield LabelledConversation(_spooled(conversation, spool), labels, where, group, number)
    refuse_nobodys(whose, policies, findings)


def _spooled(conversation: Conversation, spool: Spool) -> Conversation:
    plain = [(m.role, m.content, m.name, tuple((c.name, c.arguments) for c in m.calls)) for m in conversation.messages]
    return replace(conversation, messages=spool.keep(plain, _message))


def _message(plain: tuple[str, str, str, Iterable[tuple[str, str]]]) -> Message:
    *texts, calls = plain
    return Message(*texts, calls=tuple(ToolCall(*call) for call in calls))


def _group(row: Any, where: str, column: str | None, findings: Findings) -> str:
    if column is None or not isinstance(row, dict):
        return ""
    if column not in row:
        findings.add("COLUMN_MISSING", where, f"no column {column!r}, which data.columns.group names")
    group = as_text(row.get(column))
    missing = group is None or group != group  # NaN
    return "" if missing else plain(str(group).strip())
