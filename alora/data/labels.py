"""The labels of one row: one label for one policy, or several by policy id."""

from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import normalize

from alora.config.schema import DataSettings
from alora.data.formats import shortened
from alora.data.messages import kind, listed, unpacked
from alora.findings import Findings
from alora.policy import Policy


def row_labels(
    row: dict[str, Any],
    where: str,
    settings: DataSettings,
    policies: Sequence[Policy],
    findings: Findings,
    own: Mapping[str, Findings],
) -> dict[str, str]:
    """A row's label for each of ``policies`` that it has; ``own`` gathers what is wrong with one's alone."""
    columns = settings.columns
    if columns.label not in row and columns.labels not in row:
        text = f"no column {columns.label!r} or {columns.labels!r}; the row has {listed(row)}"
        findings.add("COLUMN_MISSING", where, f"{text}; set data.columns.label=NAME")
        return {}
    many = unpacked(row.get(columns.labels))
    if many is not None and not isinstance(many, dict):
        findings.add("LABELS_KIND", where, f"{columns.labels!r} is {kind(many)}; map each policy to its label or null")
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
    """``label`` next to ``labels`` must say the same of the policy that it belongs to, where the row tells which."""
    columns, named = settings.columns, row.get("policy")
    owner = named if isinstance(named, str) else policies[0].id if len(policies) == 1 else None
    alone = _as_text(row.get(columns.label))
    alone = settings.label_map.get(alone, alone) if isinstance(alone, str) else alone
    among = found.get(owner) if owner is not None else None
    if alone is not None and among is not None and alone != among:
        text = f"{columns.label!r} says {shortened(alone)} and {columns.labels!r} says {among!r} of {owner!r}"
        own.get(str(owner), findings).add("LABELS_DIFFER", where, f"{text}; remove one of them")


def _own_policy(row: dict[str, Any], where: str, policies: Sequence[Policy], findings: Findings) -> Policy | None:
    for policy in policies:
        if row.get("policy") == policy.id:
            return policy
    known = ", ".join(policy.id for policy in policies)
    text = f"'policy' is {kind(row.get('policy'))}; a row with one label names one of {known}"
    findings.add("POLICY_UNKNOWN", where, text)
    return None


def _label(value: Any, where: str, policy: Policy, settings: DataSettings, findings: Findings) -> str | None:
    value = _as_text(value)
    if not isinstance(value, str):
        text = f"label of {policy.id!r} is {kind(value)}; it must be one of {', '.join(policy.labels)}"
        findings.add("LABEL_MISSING" if value is None else "LABEL_UNKNOWN", where, text)
        return None
    label = settings.label_map.get(value, value)
    if label not in policy.labels:
        same = [known for known in policy.labels if normalize("NFKC", known) == normalize("NFKC", label)]
        if same:
            findings.add(
                "LABEL_UNKNOWN",
                where,
                f"label {shortened(label)} of policy {policy.id!r} is {same[0]!r} in another Unicode form (letters and "
                "accents apart, say); write both in one form, or set data.label_map",
            )
            return None
        mapped = f" (mapped from {shortened(value)})" if label != value else ""
        findings.add(
            "LABEL_UNKNOWN",
            where,
            f"label {shortened(label)}{mapped} is not one of {', '.join(policy.labels)} of policy {policy.id!r}; "
            f"fix the row, map it ('data.label_map={{{value[:40]}: {policy.labels[0]}}}', say), or add the label to "
            "the policy",
        )
        return None
    return label


def _as_text(value: Any) -> Any:
    """A number or a truth value as the text that a label is."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value
