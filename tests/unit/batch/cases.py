"""A log on disk and verdicts on it, without a model."""

import json
from pathlib import Path

from alora.batch.log_rows import survey, time_of
from alora.batch.verdict_folder import ScoredRow, VerdictFolder
from alora.config.schema import ColumnSettings, DataSettings
from alora.verdict import Verdict

TIMED = DataSettings(columns=ColumnSettings(time="at"))
POLICIES = ("advice", "refunds")
HOSTILE = "<script>alert(1)</script> | `x` [a](b) \x1b[31m \u202e"


def log(folder: Path, count: int, text: str = "Where is parcel {}?") -> Path:
    file = folder / "log.jsonl"
    rows = [
        {"id": f"c{n}", "at": f"2026-01-{1 + n // 10 % 28:02}T23:30:00-01:00",
         "messages": [{"role": "user", "content": text.replace("{}", str(n))}]}
        for n in range(count)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def probability(row: int, policy: str) -> float:
    """Spread over all tenths, another one for each policy."""
    return (row * 37 + 11 * POLICIES.index(policy)) % 100 / 100 + 0.003


def verdicts(
    place: Path, source: Path, of: object = probability, threshold: float = 0.5, negative: str = "ok", **own: object
) -> Path:
    """``negative``: the label below the threshold."""
    found = survey(str(source), TIMED)
    asked = {policy: {"adapter": "0a" * 32, "threshold": threshold, **own} for policy in POLICIES}
    job = {"rows": found.count, "rows_digest": found.digest, "time": "at", "policies": asked, "shard_rows": 16}
    rows = list(map(json.loads, source.read_text().splitlines()))
    with VerdictFolder(place, job) as folder:
        for shard in folder.missing():
            part = range(shard * 16, min(found.count, shard * 16 + 16))
            folder.write(shard, [scored(n, rows[n], of, threshold, negative) for n in part])
        folder.finish()
    return place


def scored(number: int, row: dict, of: object, threshold: float, negative: str = "ok") -> ScoredRow:
    given = []
    for policy in POLICIES:
        p = of(number, policy)  # type: ignore[operator]
        label = "violation" if p >= threshold else negative
        given.append(Verdict(policy, label, p, threshold, "0a" * 32, {}))
    return ScoredRow(number, row["id"], time_of(row, TIMED), 9, False, given)
