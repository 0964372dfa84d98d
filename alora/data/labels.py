"""The labels of one row: one label for one policy, or several by policy id."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any
from unicodedata import normalize

from alora.config.arguments import quoted
from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.files import kind, listed, shortened, unpacked
from alora.data.findings import Findings
from alora.data.first_rows import named_columns
from alora.data.roles import key_of
from alora.policy import Policy

_WHOLE = re.compile(r"(-?[0-9]+)\.0+\Z")
_NO_LABEL = ("", "n/a", "na", "#n/a", "nan", "none", "null", "nil", "<na>", "-", "?", "tbd", "unlabeled")  # in tables
_ANSWER = re.compile(r"\W*+(?:the |final )*(?:label|answer|verdict|category)\W+(?:is\W+)?", re.IGNORECASE)
_MARKS = " \n\t*_`\"'.!{}[]()"  # around a turn's one word
_REST = "*"  # of data.label_map: every other value


@dataclass
class Labels:
    """Reads the labels of one source's rows for ``policies``.

    ``own`` gathers problems of one policy's labels alone; without it they count against the source. ``whose`` has where
    the rows stand whose one label is of a policy, by the name that they give ("": none), and ``rest`` the values that
    ``*`` of ``data.label_map`` took.
    """

    settings: DataSettings
    policies: Sequence[Policy]
    findings: Findings
    own: Mapping[str, Findings] = field(default_factory=dict)
    whose: dict[str, list[str]] = field(default_factory=dict)
    rest: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, row: dict[str, Any], where: str, columns: ColumnSettings, by_alora: bool = False) -> dict[str, str]:
        """A row's label for each policy that it has; of a row that alora wrote, in the policy's own words."""
        pairs = self._pairs(row, where, columns)
        found = {policy.id: self._label(value, where, policy, by_alora) for policy, value in pairs}
        return {name: label for name, label in found.items() if label is not None}

    def _pairs(self, row: dict[str, Any], where: str, columns: ColumnSettings) -> list[tuple[Policy, Any]]:
        """The policies that a row has a label of, each with what is written there."""
        if POLICY_PLACE in columns.label:
            named = [(policy, columns.label.replace(POLICY_PLACE, policy.id)) for policy in self.policies]
            for policy, column in named:
                if column not in row:
                    text = f"no column {column!r}, which data.columns.label names; the row has {listed(row)}"
                    self.own.get(policy.id, self.findings).add("COLUMN_MISSING", where, text)
            return self._given((policy, row.get(column)) for policy, column in named)
        # One column is named, so ``labels`` that happen to be there are none to take in its place.
        alone = columns.label != ColumnSettings.label and columns.labels == ColumnSettings.labels
        many = None if alone else unpacked(row.get(columns.labels))
        if isinstance(many, dict):  # null and absent mean "not annotated"
            return self._given((policy, many.get(policy.id)) for policy in self.policies)
        if many is not None:
            text = f"{columns.labels!r} is {kind(many)}; map each policy to its label or null"
            self.findings.add("LABELS_KIND", where, text)
        elif columns.label not in row and (alone or columns.labels not in row):
            either = "" if alone else f" or {columns.labels!r}"
            each = f", or to {POLICY_PLACE} where each policy has a column of its name" * (len(self.policies) > 1)
            mend = f"set data.columns.label=NAME{each}, or data.label_turn=last where the last turn is the label"
            text = f"no column {columns.label!r}{either}; the row has {listed(row)}; {mend}"
            self._unlabelled(self.findings, "COLUMN_MISSING", where, text)
        elif policy := self._policy(row, where, columns):
            value = row.get(columns.label)
            if isinstance(value, list | dict):
                value = value[0] if isinstance(value, list) and len(value) == 1 else value or None
            if pairs := self._given([(policy, value)]):
                return pairs
            text = f"label of {policy.id!r} is missing: null, blank, or N/A, nan, None; label the row"
            text += ", or leave such rows out: data.unlabelled=leave_out"
            self._unlabelled(self.own.get(policy.id, self.findings), "LABEL_MISSING", where, text)
        return []

    def _unlabelled(self, findings: Findings, code: str, where: str, text: str) -> None:
        if self.settings.unlabelled == "leave_out":
            self.findings.notes["a row without a label is left out (data.unlabelled)"] += 1
        else:
            findings.add(code, where, text)

    def _given(self, cells: Iterable[tuple[Policy, Any]]) -> list[tuple[Policy, Any]]:
        """The cells that say a label: one of the policy's or of ``data.label_map`` may be a word for nothing."""

        def nothing(value: Any, policy: Policy) -> bool:
            known = isinstance(value, str) and key_of(value) in _NO_LABEL
            return blank(value) or (known and _meant(value, policy, self.settings.label_map) not in policy.labels)

        return [(policy, value) for policy, cell in cells if not nothing(value := as_text(cell), policy)]

    def _policy(self, row: dict[str, Any], where: str, columns: ColumnSettings) -> Policy | None:
        """The policy of the row's one label: the one that the row names, or the only policy where it names none."""
        named = _named_policy(row, columns)
        if isinstance(named, str | None):
            self.whose.setdefault(named or "", []).append(where)
        for policy in self.policies:
            if named == policy.id or (len(self.policies) == 1 and named is None):
                return policy
        known = ", ".join(policy.id for policy in self.policies)
        if len(self.policies) == 1 and isinstance(named, str):
            self.findings.notes[f"a row whose 'policy' is another than {known} is left out"] += 1
            return None
        text = f"'policy' is {kind(named)}; a row with one label names one of {known}"
        mend = f"policies=[ID] reads the file for one policy, and a file for each is FILE.{POLICY_PLACE}.csv"
        mend = f"write it there, or rename that column if it is something else; where no row names one, {mend}"
        self.findings.add("POLICY_UNKNOWN", where, f"{text}; {mend}")
        return None

    def _label(self, value: Any, where: str, policy: Policy, by_alora: bool) -> str | None:
        findings = self.own.get(policy.id, self.findings)
        if not isinstance(value, str):
            text = f"label of {policy.id!r} is {kind(value)}; it must be one of {', '.join(policy.labels)}"
            findings.add("LABEL_UNKNOWN", where, text)
            return None
        own_words = {label for policy in self.policies for label in policy.labels} if by_alora else ()
        label_map = {word: label for word, label in self.settings.label_map.items() if word not in own_words}
        label = _meant(value, policy, label_map)
        if label not in policy.labels and label_map.get(_REST) in policy.labels and value not in label_map:
            label = label_map[_REST]
            self.rest[label, value] += 1
        elif label in policy.labels and label != label_map.get(value, value):
            findings.notes[f"label {shortened(value)} is read as {label}"] += 1
        elif label in policy.labels and value in policy.labels and label != value:
            findings.notes[f"data.label_map reads {shortened(value)}, a label of {policy.id} itself, as {label}"] += 1
        if label in policy.labels:
            return label
        mapped = f" (mapped from {shortened(value)})" if label != value else ""
        text = f"label {shortened(label)}{mapped} is not one of {', '.join(policy.labels)} of policy {policy.id!r}"
        mend = f"fix the row, map it ('data.label_map={{{quoted(plain(value)[:40])}: LABEL}}', \"*\" for all others)"
        findings.add("LABEL_UNKNOWN", where, f"{text}; {mend}, or add the label to the policy")
        return None

    def says(self, text: str, policy: Policy) -> tuple[str | None, bool]:
        """The label that a whole turn is the word of, and whether it is only the policy's answer word."""
        word = text[opening.end() if (opening := _ANSWER.match(text)) else 0 :].strip(_MARKS)
        for part in (word, word.partition("\n")[0].strip(_MARKS)):  # a reason may follow
            if (label := _meant(part, policy, self.settings.label_map)) in policy.labels:
                return label, False
        words = {_folded(answer): label for answer, label in zip(policy.answers, policy.labels, strict=True)}
        return words.get(_folded(word)), True

    def close(self) -> None:
        """What is to be said once all rows were read: values that ``*`` took, and rows that name no policy."""
        for label in dict.fromkeys(label for label, _ in self.rest):
            taken = [(value, times) for (meant, value), times in self.rest.most_common() if meant == label]
            counts = ", ".join(f"{shortened(value)} ({times})" for value, times in taken)
            self.findings.notes[f"'*' of data.label_map reads as {label}: {counts}"] += 1
        nobodys = self.whose.pop("", ())
        if len(self.policies) > 1 or not nobodys or not self.whose:
            return
        if [*self.whose] == [self.policies[0].id]:
            text = f"a row that names no policy is read as one of {self.policies[0].id}, which others name"
            self.findings.notes[text] += len(nobodys)
            return
        text = f"the row names no policy, and others of the file do ({listed(sorted(self.whose))})"
        for where in nobodys:
            mend = "fill in 'policy', or rename that column if it is something else"
            self.findings.add("POLICY_UNKNOWN", where, f"{text}; {mend}")


def _named_policy(row: dict[str, Any], columns: ColumnSettings) -> Any:
    """What a row's ``policy`` says, in any capitals, if it is not named as another column; None where nothing is in
    it."""
    known = named_columns(columns)
    names = [name for name in row if isinstance(name, str) and key_of(name) == "policy" and name not in known]
    value = as_text(row["policy" if "policy" in names else names[0]]) if names else None
    return None if blank(value) or (isinstance(value, str) and not value.strip()) else value


def _meant(value: str, policy: Policy, label_map: Mapping[str, str]) -> str:
    """The label that ``value`` stands for: the mapped one, or the only one with the same spelling."""
    label = label_map.get(value, value)
    if label in policy.labels:
        return label
    known = {**dict(zip(policy.labels, policy.labels, strict=True)), **label_map}
    alike = {meant for name, meant in known.items() if _folded(name) == _folded(value) and meant in policy.labels}
    return min(alike) if len(alike) == 1 else label


def _folded(label: str) -> str:
    """A label without its differences in spelling: capitals, surrounding blanks, how an accent is encoded, and 1.0."""
    return plain(normalize("NFKC", label).strip().casefold())


def plain(text: str) -> str:
    """A whole number without the fraction that a table with gaps gives it; any other text as it is."""
    return _WHOLE.sub(r"\1", text)


def blank(value: Any) -> bool:
    """Whether a cell is empty: null or NaN."""
    return value is None or value != value


def as_text(value: Any) -> Any:
    """A number or a truth value as the text that a label is; a table with gaps has its whole numbers as 1.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value) if isinstance(value, int) else value
