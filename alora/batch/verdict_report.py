"""A report on a log's verdicts: rates over time, who fires together, examples, drift. Read a shard at a time."""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from alora.batch.stored_verdicts import read_manifest, tables
from alora.evaluation.html import in_markdown, markdown_table, page_template
from alora.training.layout import PAGE_MARK
from alora.verdict import LEAST, TENTHS, population_stability

MOST_DAYS = 62  # rates are shown by day up to here, else by month
MOST_TOGETHER = 100  # policies in the table of pairs, which grows with their square
EXCERPT = 300  # characters of a conversation
_UNKNOWN = "unknown"
_EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)
_COMPACT = re.compile(r"\d{8}(\d{6})?")


@dataclass(frozen=True)
class Table:
    """A title, what it shows, and rows of cells: a report is a list of these."""

    title: str
    about: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ShownVerdict:
    """One verdict that is shown; ``reason`` is certain or uncertain."""

    policy: str
    reason: str
    row: int
    id: str
    probability: float


class Summary:
    """Counts over all verdicts of a folder or file; memory does not grow with their number."""

    def __init__(self, path: Path, examples: int) -> None:
        self.manifest = read_manifest(path)
        self.job: Mapping[str, Any] = self.manifest["job"]
        self.policies, count = list(self.job["policies"]), len(self.job["policies"])
        self.rows, self.flagged_P = 0, np.zeros(count, dtype=np.int64)
        self.both_QQ = np.zeros(2 * (min(count, MOST_TOGETHER),), dtype=np.int64)
        self.tenths_PB = np.zeros((count, TENTHS), dtype=np.int64)
        self.days: dict[str, Counter[str]] = defaultdict(Counter)  # day → policy, or "" for rows → count
        self._kept: dict[tuple[str, str], list[tuple[float, int, str, float]]] = defaultdict(list)
        self._examples = examples
        columns = [f"{policy}_{field}" for policy in self.policies for field in ("probability", "label", "flagged")]
        for table in tables(path, ["row", "id", "time", *columns]):
            if len(table):
                self._add(table)

    def _add(self, table: Any) -> None:
        flagged_NP = np.column_stack([table[f"{policy}_flagged"].to_numpy() for policy in self.policies])
        self.rows += len(table)
        self.flagged_P += flagged_NP.sum(axis=0)
        flagged_NQ = flagged_NP[:, :MOST_TOGETHER].astype(np.int64)
        self.both_QQ += flagged_NQ.T @ flagged_NQ
        for index, (policy, own) in enumerate(self.job["policies"].items()):
            probability_N = table[f"{policy}_probability"].to_numpy()
            tenths_N = np.minimum((probability_N * TENTHS).astype(np.int64), TENTHS - 1)
            self.tenths_PB[index] += np.bincount(tenths_N, minlength=TENTHS)
            above_N = probability_N - own["threshold"]
            self._keep(table, policy, "certain", above_N, probability_N)
            self._keep(table, policy, "uncertain", -abs(above_N), probability_N)
        for time, flagged_P in zip(table["time"].to_pylist() if self.job.get("time") else (), flagged_NP, strict=False):
            self.days[day_of(time)].update(["", *(self.policies[index] for index in np.flatnonzero(flagged_P))])

    def _keep(self, table: Any, policy: str, reason: str, score_N: Any, probability_N: Any) -> None:
        best = np.argsort(-score_N, kind="stable")[: self._examples]
        rows, ids = table["row"].take(best).to_pylist(), table["id"].take(best).to_pylist()
        candidates = zip(score_N[best].tolist(), (-row for row in rows), ids, probability_N[best].tolist(), strict=True)
        kept = self._kept[policy, reason]
        kept[:] = heapq.nlargest(self._examples, [*kept, *candidates])

    @property
    def examples(self) -> list[ShownVerdict]:
        """By policy, the surest positive verdicts, then those nearest to the threshold."""
        return [
            ShownVerdict(policy, reason, -row, name, probability)
            for (policy, reason), kept in sorted(self._kept.items())
            for score, row, name, probability in kept
            if reason == "uncertain" or score >= 0
        ]


def day_of(time: str | None) -> str:
    """The day (UTC where the time has a zone) of an ISO date, or of (milli-, micro-, nano-) seconds since 1970.

    A number that is not a time from 1990 until now is rather a month, a year or an hour, as 202603 is: unknown.
    """
    if not time:
        return _UNKNOWN
    if not _COMPACT.fullmatch(time):  # a date without its dashes, and no number of seconds
        with suppress(ValueError, OverflowError, OSError):
            number = float(time)
            while 1e11 < abs(number) < 1e20:
                number /= 1000
            moment = datetime.fromtimestamp(number, UTC)
            sane = _EARLIEST <= moment <= datetime.now(UTC) + timedelta(days=1)
            return moment.date().isoformat() if sane else _UNKNOWN
    try:
        moment = datetime.fromisoformat(time)
        return (moment.astimezone(UTC) if moment.tzinfo else moment).date().isoformat()
    except (ValueError, OverflowError):
        return _UNKNOWN


def report(summary: Summary, texts: Mapping[int, str]) -> list[Table]:
    """The tables of a report; ``texts`` are of the rows that it shows."""
    job, done = summary.job, summary.manifest.get("done") or {}
    facts = [("rows", str(job["rows"])), ("with verdicts", str(summary.rows)),
             ("rejected", str(done.get("rejected", "not done yet"))), ("engine", str(job.get("engine")))]  # fmt: skip
    shown = [Table("Job", "", ("", ""), facts), _rates(summary)]
    shown += [_over_time(summary)] if summary.days else []
    shown += [_together(summary)] if len(summary.policies) > 1 else []
    return [*shown, _drift(summary), *_examples(summary, texts)]


def _rates(summary: Summary) -> Table:
    rows = [
        (policy, str(flagged), _share(flagged, summary.rows), f"{own['threshold']:.4f}", own["adapter"][:12])
        for (policy, own), flagged in zip(summary.job["policies"].items(), summary.flagged_P, strict=True)
    ]
    headings = ("policy", "flagged", "share", "threshold", "adapter")
    return Table("Rates", "Share of the rows that each policy flags.", headings, rows)


def _over_time(summary: Summary) -> Table:
    by_day = len(summary.days) <= MOST_DAYS
    spans: dict[str, Counter[str]] = defaultdict(Counter)
    for day, counts in sorted(summary.days.items()):
        spans[day if by_day or day == _UNKNOWN else day[:7]].update(counts)
    rows = [
        (span, str(counts[""]), *(_share(counts[policy], counts[""]) for policy in summary.policies))
        for span, counts in spans.items()
    ]
    about = f"By {'day' if by_day else 'month'}, from the column {summary.job['time']!r}."
    return Table("Over time", about, ("time", "rows", *summary.policies), rows)


def _together(summary: Summary) -> Table:
    policies = summary.policies[:MOST_TOGETHER]
    rows = [
        (policy, *(_share(both, summary.flagged_P[index]) for both in summary.both_QQ[index]))
        for index, policy in enumerate(policies)
    ]
    about = "Share of the rows that a policy flags (row) which another one flags too (column)."
    about += f" The first {MOST_TOGETHER} policies alone." if len(summary.policies) > MOST_TOGETHER else ""
    return Table("Firing together", about, ("flagged by", *policies), rows)


def _drift(summary: Summary) -> Table:
    rows = []
    for (policy, own), tenths_B in zip(summary.job["policies"].items(), summary.tenths_PB, strict=True):
        before = own.get("histogram")
        psi = population_stability(before, tenths_B.tolist())
        if psi is None:
            few = "here" if sum(tenths_B) < LEAST else "to validate on"
            rows.append((policy, "-", f"fewer than {LEAST} rows {few}" if before else "the bundle has no histogram"))
        else:
            rows.append((policy, f"{psi:.3f}", "stable" if psi < 0.1 else "some drift" if psi < 0.25 else "DRIFT"))
    about = ("Population stability index of the probabilities against the rows that each policy was validated on, in "
             "tenths: below 0.1 is stable, above 0.25 is another population.")  # fmt: skip
    return Table("Drift", about, ("policy", "PSI", "reading"), rows)


def _examples(summary: Summary, texts: Mapping[int, str]) -> Iterable[Table]:
    titles = {"certain": "The surest positive verdicts", "uncertain": "The verdicts nearest to the threshold"}
    headings = ("policy", "probability", "row", "id", *(["conversation"] if texts else []))
    for reason, title in titles.items():
        rows = [
            (one.policy, f"{one.probability:.4f}", str(one.row), one.id, *([texts.get(one.row, "")] if texts else []))
            for one in summary.examples
            if one.reason == reason
        ]
        yield Table(title, "", headings, rows)


def as_html(shown: Sequence[Table]) -> str:
    """One file that needs no network. Everything in it is escaped: ids and conversations are untrusted."""
    return page_template(Path(__file__).with_name("report.html.j2")).render(tables=shown, mark=PAGE_MARK)


def as_markdown(shown: Sequence[Table]) -> str:
    """The same tables for a wiki or a pull request; untrusted text is never markup."""
    parts = [PAGE_MARK]
    for table in shown:
        headings, *rows = ([*map(in_markdown, cells)] for cells in (table.headings, *table.rows))
        about = [in_markdown(table.about)] if table.about else []
        parts += [f"## {table.title}", *about, markdown_table(headings, rows)]
    return "\n\n".join(parts) + "\n"


def _share(part: Any, whole: Any) -> str:
    return f"{part / whole:.2%}" if whole else "-"
