"""Rows with the labels of policies, from one source or several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alora.config.schema import DataSettings
from alora.data.conversation import LabelledConversation, SourceReader
from alora.data.files import SPLITS, listed, shortened
from alora.data.findings import Findings
from alora.data.formats import SHARE
from alora.data.labels import Labels, as_text, blank, plain
from alora.data.messages import Conversation, Message, text_digest
from alora.data.sources import Source, each, named
from alora.data.spool import Spool
from alora.errors import DataError
from alora.policy import Policy


def read_labelled(
    source: Source, settings: DataSettings, policy: Policy, findings: Findings | None = None, use: str | None = None
) -> list[LabelledConversation]:
    """The rows of ``source`` that are labelled for ``policy``, in their order; as :func:`read_multilabelled`."""
    rows = read_multilabelled(source, settings, [policy], findings=findings, use=use)
    if labelled := [row for row in rows if policy.id in row.labels]:
        return labelled
    raise none_labelled(source, len(rows), policy.id)


def read_multilabelled(
    source: Source,
    settings: DataSettings,
    policies: Sequence[Policy],
    own: Mapping[str, Findings] | None = None,
    findings: Findings | None = None,
    use: str | None = None,
) -> list[LabelledConversation]:
    """Every row of ``source`` with the labels that it has for ``policies``. A row's ``label`` is of the policy that its
    ``policy`` names; where it names none, and no row of its file another, of the only policy. ``own`` gathers problems
    of one policy's labels, ``findings`` all others and notes; ``use`` is train, validation or test, where
    ``data.columns.split`` says which rows are for it (None: all)."""
    findings = Findings() if findings is None else findings
    ids_seen: dict[str, str] = {}
    spool, rows = Spool(), []
    for number, file in enumerate(each(source)):
        for row in _Reader(file, settings, policies, own or {}, findings, use).rows(ids_seen):
            messages, digest = spool.keep(row.conversation.messages), text_digest(row.conversation)
            conversation = replace(row.conversation, messages=messages, digest=digest)
            rows.append(replace(row, conversation=conversation, source=number))
    findings.raise_if_any(named(source))
    if not rows and (use is None or settings.columns.split is None):
        raise DataError(f"{named(source)} holds no rows; give it at least one row per label")
    return rows


def none_labelled(source: Source, rows: int, policy: str) -> DataError:
    """The error of a source without a row of ``policy``."""
    return DataError(
        f"{named(source)}: none of its {rows} rows is labelled for policy {policy!r} (where a row has a 'policy', its "
        "label is of that one, and where it has 'labels', they alone count; rename a column of these names that is "
        "something else)"
    )


class _Reader(SourceReader):
    """The labelled rows of one source, valid while ``findings`` is empty."""

    def __init__(
        self,
        source: str,
        settings: DataSettings,
        policies: Sequence[Policy],
        own: Mapping[str, Findings],
        findings: Findings,
        use: str | None,
    ) -> None:
        super().__init__(source, settings, findings.notes)
        self._given, self._policies, self._findings, self._use = settings, policies, findings, use
        self._labels = Labels(settings, policies, findings, own)
        self._ends, self._words = 0, dict[str, bool]()  # last turns; where one is a label's word, and if it is a leak

    def rows(self, ids_seen: dict[str, str]) -> Iterator[LabelledConversation]:
        """Each row; ``ids_seen`` has the ids of all sources."""
        for row in self:
            value, where = row.value if isinstance(row.value, dict) else {}, row.where
            if value and not self._of_use(value, where):
                continue
            conversation, labels = self.read(row, self._findings), dict[str, str]()
            if conversation is None and self._given.skip_empty:
                continue  # left out: what else is wrong with it does not matter
            if value:
                conversation, labels = self._labelled(value, where, conversation)
            if conversation is not None and conversation.id != where:
                if conversation.id in ids_seen:
                    twice = f"id {shortened(conversation.id)} is also at {ids_seen[conversation.id]}"
                    text = "make ids unique, or name another column: data.columns.id=NAME"
                    self._findings.add("ID_TWICE", where, text, twice)
                ids_seen.setdefault(conversation.id, where)
            group = self._group(value, where)
            if conversation is not None:
                yield LabelledConversation(conversation, labels, where, group)
        self._labels.close()
        self.close(self._findings)
        many = SHARE * len(self._words) > self._ends
        for where in [where for where, sure in self._words.items() if sure or many]:
            text = "the last turn is a label's word, which the adapter would read off"
            mend = "data.label_turn=last takes it out of the conversation, or remove it"
            self._findings.add("LABEL_LEAK", where, f"{text}; {mend}")

    def _of_use(self, row: dict[str, Any], where: str) -> bool:
        """Whether a row is of this use, by ``data.columns.split``."""
        column = self._given.columns.split
        if column is None or self._use is None:
            return True
        cell = row.get(column)
        value = "" if blank(cell) else str(cell).strip().lower()
        if column not in row:
            text = f"no column {column!r}, which data.columns.split names; the row has {listed(row)}"
            self._findings.add("COLUMN_MISSING", where, text)
        elif value not in SPLITS:
            text = f"{column!r} is {shortened(cell) if value else 'blank'}; it must be one of {', '.join(SPLITS)}"
            self._findings.add("SPLIT_UNKNOWN", where, text)
        return SPLITS.get(value) == self._use

    def _labelled(
        self, row: dict[str, Any], where: str, conversation: Conversation | None
    ) -> tuple[Conversation | None, dict[str, str]]:
        """The conversation, without the turn that is its label, and its labels."""
        if self._given.label_turn != "last" or self.by_alora:
            labels = self._labels.of(row, where, self.columns, self.by_alora)
            if conversation is not None and labels:
                self._look_at_end(conversation.messages, labels, where)
            return conversation, labels
        if conversation is None:
            return None, {}
        *rest, last = conversation.messages
        if not rest:
            self._findings.add("EMPTY", where, "data.label_turn=last leaves no turn; the label stands behind others")
            return None, {}
        said = next((label for policy in self._policies if (label := self._labels.says(last.text, policy)[0])), None)
        given = {name: value for name, value in row.items() if name not in ("label", "labels")}
        columns = replace(self.columns, label="label", labels="labels")
        labels = self._labels.of({**given, "label": said or last.text.strip()}, where, columns)
        return replace(conversation, messages=tuple(rest)), labels

    def _look_at_end(self, turns: Sequence[Message], labels: Mapping[str, str], where: str) -> None:
        """Note a last turn that is a label's word, which the adapter would learn to read off."""
        self._ends, replies = self._ends + 1, turns[-1].role == "assistant"
        for policy in self._policies if replies or len(turns) > 1 else ():
            said, answer = self._labels.says(turns[-1].text, policy)
            same = said == labels.get(policy.id)
            if said and (same or not answer):  # a reply may be "Yes", and a user's end "ok", but not in many rows
                self._words[where] = self._words.get(where) or (same and replies and not answer)

    def _group(self, row: dict[str, Any], where: str) -> str:
        column = self.columns.group
        if column is None or not row:
            return ""
        if column not in row:
            self._findings.add("COLUMN_MISSING", where, f"no column {column!r}, which data.columns.group names")
        group = as_text(row.get(column))
        return "" if blank(group) else plain(str(group).strip())
