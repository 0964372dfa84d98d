"""The labels of one row: one label for one policy, or several by policy id."""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any
from unicodedata import normalize

from alora.config.arguments import quoted
from alora.config.paths import POLICY_PLACE
from alora.config.schema import ColumnSettings, DataSettings
from alora.data.cells import key_of, kind, listed, named_columns, unpacked
from alora.data.formats import shortened
from alora.findings import Findings
from alora.policy import Policy

_WHOLE = re.compile(r"(-?[0-9]+)\.0+\Z")


def row_labels(
    row: dict[str, Any],
    where: str,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
    whose: dict[str, list[str]],
) -> dict[str, str]:
    """A row's label for each of ``policies`` that it has; ``own`` gathers problems of one policy's labels alone, and
    ``whose`` where the rows stand whose one label is of a policy, by the name that they give; "": none."""
    columns = settings.columns
    of_each = POLICY_PLACE in columns.label
    many = None if of_each or named_alone(columns) else unpacked(row.get(columns.labels))
    if of_each:
        pairs = _by_column(row, where, columns.label, policies, findings, own)
    elif columns.label not in row and (columns.labels not in row or named_alone(columns)):
        either = "" if named_alone(columns) else f" or {columns.labels!r}"
        text = f"no column {columns.label!r}{either}; the row has {listed(row)}"
        each = f", or to {POLICY_PLACE} where each policy has a column of its name" if len(policies) > 1 else ""
        findings.add("COLUMN_MISSING", where, f"{text}; set data.columns.label=NAME{each}")
        return {}
    elif many is not None and not isinstance(many, dict):
        findings.add("LABELS_KIND", where, f"{columns.labels!r} is {kind(many)}; map each policy to its label or null")
        return {}
    elif many is not None:  # null and absent mean "not annotated"
        pairs = [(policy, many[policy.id]) for policy in policies if many.get(policy.id) is not None]
        _note_lost(row, many, policies, columns, findings)
    else:
        policy = _own_policy(row, where, columns, policies, findings, whose)
        pairs = [] if policy is None else [(policy, row.get(columns.label))]
    labels_found = {
        policy.id: _label(value, where, policy, settings, own.get(policy.id, findings)) for policy, value in pairs
    }
    if many is not None:
        _refuse_contradiction(row, labels_found, where, settings, policies, findings, own)
    return {name: label for name, label in labels_found.items() if label is not None}


def named_alone(columns: ColumnSettings) -> bool:
    """Whether one label column is named, and so ``labels`` that happen to be there are none to take in its place."""
    return columns.label != ColumnSettings.label and columns.labels == ColumnSettings.labels


def _by_column(
    row: dict[str, Any],
    where: str,
    named: str,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
) -> list[tuple[Policy, Any]]:
    """A row's label for each policy, from the policy's own column; an empty cell means "not annotated"."""
    pairs = []
    for policy in policies:
        column = named.replace(POLICY_PLACE, policy.id)
        if column not in row:
            text = f"no column {column!r}, which data.columns.label names; the row has {listed(row)}"
            own.get(policy.id, findings).add("COLUMN_MISSING", where, text)
        elif row[column] not in (None, ""):
            pairs.append((policy, row[column]))
    return pairs


def _refuse_contradiction(
    row: dict[str, Any],
    labels_found: Mapping[str, str | None],
    where: str,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
) -> None:
    """If a row has both ``label`` and ``labels``, they must agree for the policy that the row names."""
    columns, named = settings.columns, _named_policy(row, settings.columns)
    if columns.label == ColumnSettings.label and columns.labels != ColumnSettings.labels:
        return  # labels alone are named, and a column "label" may be anything
    named = named if isinstance(named, str) or len(policies) > 1 else policies[0].id
    for policy in policies:
        alone, among = as_text(row.get(columns.label)), labels_found.get(policy.id)
        if policy.id != named or alone is None or among is None:
            continue
        alone = _meant(alone, policy, settings) if isinstance(alone, str) else alone
        if alone != among:
            text = f"{columns.label!r} says {shortened(alone)} and {columns.labels!r} says {among!r} of {policy.id!r}"
            own.get(policy.id, findings).add("LABELS_DIFFER", where, f"{text}; remove one of them")


def _note_lost(
    row: dict[str, Any],
    many: Mapping[str, Any],
    policies: Sequence[Policy],
    columns: ColumnSettings,
    findings: Findings,
) -> None:
    """Notes on labels that ``labels`` seems to have under another spelling, or in its place ``label``."""
    ids, named = {policy.id for policy in policies}, _named_policy(row, columns)
    others = {key_of(name): name for name in many if name not in ids}
    alone = row.get(columns.label) is not None and columns.labels == ColumnSettings.labels
    for policy in policies:
        if many.get(policy.id) is not None:
            continue
        if other := others.get(key_of(policy.id)):
            findings.notes[f"{other!r} in {columns.labels!r} is not read: the policy is {policy.id!r}"] += 1
        if alone and _is_of(policy, named, policies):
            text = f"{columns.label!r} is not read next to {columns.labels!r}, which has no label of {policy.id!r}"
            findings.notes[text] += 1


def _named_policy(row: dict[str, Any], columns: ColumnSettings) -> Any:
    """What a row's ``policy`` says, in any capitals, if it is not named as another column; None where nothing is in
    it."""
    known = named_columns(columns)
    names = [name for name in row if isinstance(name, str) and key_of(name) == "policy" and name not in known]
    value = as_text(row["policy" if "policy" in names else names[0]]) if names else None
    nothing = value != value or (isinstance(value, str) and not value.strip())  # NaN
    return None if nothing else value


def _is_of(policy: Policy, named: Any, policies: Sequence[Policy]) -> bool:
    """Whether a row's one label is of ``policy``, by the policy that it ``named``, if any."""
    return named == policy.id or (len(policies) == 1 and named is None)


def _own_policy(
    row: dict[str, Any],
    where: str,
    columns: ColumnSettings,
    policies: Sequence[Policy],
    findings: Findings,
    whose: dict[str, list[str]],
) -> Policy | None:
    """The policy of the row's one label: the one that the row names, or the only policy where it names none."""
    named = _named_policy(row, columns)
    if isinstance(named, str | None):
        whose.setdefault(named or "", []).append(where)
    for policy in policies:
        if _is_of(policy, named, policies):
            return policy
    known = ", ".join(policy.id for policy in policies)
    if len(policies) == 1 and isinstance(named, str):
        findings.notes[f"a row whose 'policy' is another than {known} is left out"] += 1
        return None
    text = f"'policy' is {kind(named)}; a row with one label names one of {known}"
    mend = f"policies=[ID] reads the file for one policy, and a file for each is FILE.{POLICY_PLACE}.csv"
    mend = f"write it there, or rename that column if it is something else; where no row names one, {mend}"
    findings.add("POLICY_UNKNOWN", where, f"{text}; {mend}")
    return None


def refuse_nobodys(whose: Mapping[str, Sequence[str]], policies: Sequence[Policy], findings: Findings) -> None:
    """Findings on the rows of a file that name no policy, where others name another than the only one of ``policies``;
    a note where all that name one name this."""
    nobodys, named = whose.get("", ()), sorted(whose.keys() - {""})
    if len(policies) > 1 or not nobodys or not named:
        return
    if named == [policies[0].id]:
        findings.notes[f"a row that names no policy is read as one of {policies[0].id}, which others name"] += len(
            nobodys
        )
        return
    text = f"the row names no policy, and others of the file do ({listed(named)})"
    text += "; fill in 'policy', or rename that column if it is something else"
    for where in nobodys:
        findings.add("POLICY_UNKNOWN", where, text)


def _label(value: Any, where: str, policy: Policy, settings: DataSettings, findings: Findings) -> str | None:
    value = as_text(value)
    if not isinstance(value, str):
        text = f"label of {policy.id!r} is {kind(value)}; it must be one of {', '.join(policy.labels)}"
        findings.add("LABEL_MISSING" if value is None else "LABEL_UNKNOWN", where, text)
        return None
    label = _meant(value, policy, settings)
    if label in policy.labels:
        if label != settings.label_map.get(value, value):
            findings.notes[f"label {shortened(value)} is read as {label}"] += 1
        elif value in policy.labels and label != value:
            findings.notes[f"data.label_map reads {shortened(value)}, a label of {policy.id} itself, as {label}"] += 1
        return label
    mapped = f" (mapped from {shortened(value)})" if label != value else ""
    findings.add(
        "LABEL_UNKNOWN",
        where,
        f"label {shortened(label)}{mapped} is not one of {', '.join(policy.labels)} of policy {policy.id!r}; "
        f"fix the row, map it ('data.label_map={{{quoted(plain(value)[:40])}: LABEL}}'), or add the label to the "
        "policy",
    )
    return None


def _meant(value: str, policy: Policy, settings: DataSettings) -> str:
    """The label that ``value`` stands for: the mapped one, or the only one with the same spelling."""
    label = settings.label_map.get(value, value)
    if label in policy.labels:
        return label
    known = {**dict(zip(policy.labels, policy.labels, strict=True)), **settings.label_map}
    alike = {meant for name, meant in known.items() if _folded(name) == _folded(value) and meant in policy.labels}
    return min(alike) if len(alike) == 1 else label


def _folded(label: str) -> str:
    """A label without its differences in spelling: capitals, surrounding blanks, how an accent is encoded, and 1.0."""
    return plain(normalize("NFKC", label).strip().casefold())


def plain(text: str) -> str:
    """A whole number without the fraction that a table with gaps gives it; any other text as it is."""
    return _WHOLE.sub(r"\1", text)


def as_text(value: Any) -> Any:
    """A number or a truth value as the text that a label is; a table with gaps has its whole numbers as 1.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value) if isinstance(value, int) else value
