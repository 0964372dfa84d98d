"""Which rows of a log are worth a label: per policy uncertain rows, rows that another version or a judge answers
differently, and some of each tenth of probability, so that confident mistakes are found, too.

The choice depends on the verdicts alone: rows are drawn by a digest of their number.
"""

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from alora.batch.stored_verdicts import read_manifest, tables
from alora.errors import ConfigError
from alora.verdict import TENTHS, tenth

UNCERTAIN, DISAGREES, STRATUM = "uncertain", "disagrees", "stratum"
_SHARES = {DISAGREES: 0.3, UNCERTAIN: 0.4}  # of the rows of a policy; the rest is drawn over the tenths

Wanted = dict[int, dict[str, dict[str, Any]]]  # row → policy → why, and what the verdict said

_Pick = tuple[float, int, dict[str, Any]]  # a row that may be chosen: its rank (lowest first), its number, its verdict
Kept = dict[tuple[str, str], list[_Pick]]  # policy and reason, of a stratum with its number → the first ``rows``


def sample(verdicts: Path, rows: int, against: Path | None = None) -> Wanted:
    """The rows to label: at most ``rows`` for each policy; with those on which ``verdicts`` and ``against`` differ, the
    verdicts on the same rows by another version or by a judge."""
    job = read_manifest(verdicts)["job"]
    others = {} if against is None else _labels(job, verdicts, against)
    kept: Kept = defaultdict(list)
    columns = [f"{policy}_{name}" for policy in job["policies"] for name in ("probability", "label", "flagged")]
    for table in tables(verdicts, ["row", *columns]):
        for policy, own in job["policies"].items():
            for key, picks in _picks(table, policy, own["threshold"], others.get(policy)).items():
                kept[policy, key] = heapq.nsmallest(rows, [*kept[policy, key], *picks])
    wanted: Wanted = defaultdict(dict)
    for policy in job["policies"]:
        _choose(wanted, policy, rows, kept)
    return dict(sorted(wanted.items()))


def _picks(table: Any, policy: str, threshold: float, others: dict[int, str] | None) -> dict[str, list[_Pick]]:
    picks: dict[str, list[_Pick]] = defaultdict(list)
    names = ["row", *(f"{policy}_{name}" for name in ("probability", "label"))]
    for row, probability, label in zip(*(table[name].to_pylist() for name in names), strict=True):
        said = {"label": label, "probability": probability}
        draw = int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:6]) / 2**48
        picks[UNCERTAIN].append((abs(probability - threshold), row, said))
        picks[f"{STRATUM} {tenth(probability)}"].append((draw, row, said))
        if others is not None and others.get(row, label) != label:
            picks[DISAGREES].append((draw, row, said))
    return picks


def _choose(wanted: Wanted, policy: str, rows: int, kept: Kept) -> None:
    """The share of each kind, then rows of the strata, one of each in turn; a row is chosen once."""
    first = [(reason, kept[policy, reason][: round(rows * share)]) for reason, share in _SHARES.items()]
    strata = zip_longest(*(kept[policy, f"{STRATUM} {number}"] for number in range(TENTHS)))
    rest = (STRATUM, [pick for layer in strata for pick in layer if pick is not None])
    count = 0
    for reason, picks in [*first, rest]:
        for _, row, said in picks:
            if count < rows and policy not in wanted[row]:
                wanted[row][policy] = {"why": reason, **said}
                count += 1


def _labels(job: Mapping[str, Any], verdicts: Path, against: Path) -> dict[str, dict[int, str]]:
    other_job = read_manifest(against)["job"]
    if other_job["rows_digest"] != job["rows_digest"]:
        raise ConfigError(
            f"{against} holds verdicts on other rows than {verdicts}; score the same data= by both, with the "
            "same data.columns.time"
        )
    shared = [policy for policy in job["policies"] if policy in other_job["policies"]]
    if not shared:
        raise ConfigError(f"{against} has none of the policies {', '.join(job['policies'])}")
    by_policy: dict[str, dict[int, str]] = {policy: {} for policy in shared}
    for table in tables(against, ["row", *(f"{policy}_{name}" for policy in shared for name in ("label", "flagged"))]):
        for policy, labels in by_policy.items():
            labels.update(zip(table["row"].to_pylist(), table[f"{policy}_label"].to_pylist(), strict=True))
    return by_policy
