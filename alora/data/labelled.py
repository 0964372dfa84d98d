"""Rows with the labels of policies, from one source or several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from alora.config.schema import DataSettings
from alora.data.conversation import LabelledConversation, SourceReader
from alora.data.files import SPLITS, shortened
from alora.data.findings import Findings
from alora.data.formats import SHARE
from alora.data.labels import Labels, as_text, blank, plain
from alora.data.messages import Conversation, text_digest
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
    ``policy`` names; where it names none, and no row of its file another, of the only policy.

    Args:
        own: per policy id, where to gather problems of its labels alone; without it they count against the source.
        findings: keeps the notes on how the rows were read.
        use: train, validation or test, where ``data.columns.split`` says which rows are for it; None: all.
    """
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
        self._replies, self._answers = 0, dict[str, None]()  # last turns of the assistant; where one is an answer word

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
        if SHARE * len(self._answers) > self._replies:
            for where in self._answers:
                self._leak(where)

    def _of_use(self, row: dict[str, Any], where: str) -> bool:
        """Whether a row is of this use, by ``data.columns.split``."""
        column = self._given.columns.split
        if column is None or self._use is None:
            return True
        value = str(row.get(column) or "").strip().lower()
        if value not in SPLITS:
            text = f"{column!r} is {shortened(row.get(column))}; it must be one of {', '.join(SPLITS)}"
            self._findings.add("SPLIT_UNKNOWN", where, text)
        return SPLITS.get(value) == self._use

    def _labelled(
        self, row: dict[str, Any], where: str, conversation: Conversation | None
    ) -> tuple[Conversation | None, dict[str, str]]:
        """The conversation, without the turn that is its label, and its labels."""
        if self._given.label_turn != "last" or self.by_alora:
            labels = self._labels.of(row, where, self.columns, self.by_alora)
            if conversation is not None and conversation.messages[-1].role == "assistant":
                self._refuse_leak(conversation.messages[-1].text, labels, where)
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

    def _refuse_leak(self, last: str, labels: Mapping[str, str], where: str) -> None:
        """A finding where the last turn is the row's label, which the adapter would learn to read off."""
        self._replies += 1
        for policy in self._policies:
            said, answer = self._labels.says(last, policy)
            if said is None or said != labels.get(policy.id):
                continue
            if not answer:
                self._leak(where)
            else:  # "Yes" may be a reply; one in many of them is no exception
                self._answers[where] = None

    def _leak(self, where: str) -> None:
        text = "the last turn is the row's label, which the adapter would read off"
        mend = "data.label_turn=last takes it out of the conversation, or remove it"
        self._findings.add("LABEL_LEAK", where, f"{text}; {mend}")

    def _group(self, row: dict[str, Any], where: str) -> str:
        column = self.columns.group
        if column is None or not row:
            return ""
        if column not in row:
            self._findings.add("COLUMN_MISSING", where, f"no column {column!r}, which data.columns.group names")
        group = as_text(row.get(column))
        return "" if blank(group) else plain(str(group).strip())
