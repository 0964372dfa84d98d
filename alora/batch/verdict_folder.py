"""A folder of verdicts on the rows of a log: Parquet shards in the rows' order, written whole, one after the other.

    manifest.json             the job (which rows, policies, base, settings), and its result once it is done
    verdicts-00000.parquet    the verdicts on the first ``shard_rows`` rows, and so on
    rejected-00000.jsonl      the rows of a shard without verdicts, each with the reasons
    rejected.jsonl            all of them, once the job is done

A shard that exists is complete, so a killed job resumes after the last one and ends with the same bytes: each shard is
scored by itself. ``verdicts.parquet`` as output is such a folder until the job is done, joined into one file then.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow
import pyarrow.parquet

from alora.atomic import LOCK, alone_in, is_part, remove_own, sweep, whole, write_json, write_pieces
from alora.batch.stored_verdicts import (
    FIELDS,
    MANIFEST,
    METADATA,
    checked,
    read_manifest,
    schema,
    shard_name,
    shard_rows,
)
from alora.data.files import shortened
from alora.data.sources import PARQUET_SUFFIXES
from alora.errors import DataError, RunError
from alora.received import sealed
from alora.text import leaves, read_whole
from alora.verdict import Verdict

REJECTED = "rejected.jsonl"
_PARTS = re.compile(
    r"rejected\.jsonl|\.lock|verdicts-(\d{5,18})\.parquet|rejected-(\d{5,18})\.jsonl|\..*\.[0-9a-f]{8}\.alora-part"
)
_OWN = re.compile(rf"{_PARTS.pattern}|manifest\.json")
_WRITTEN: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}  # a damaged page is refused
_LONGEST = 2**32  # bytes of the rows without verdicts of a shard


@dataclass(frozen=True)
class ScoredRow:
    """A row with its verdicts."""

    row: int
    id: str
    time: str | None
    prefix_tokens: int
    truncated: bool
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class RefusedRow:
    """A row without a verdict."""

    row: int
    where: str
    reasons: list[str]


class VerdictFolder:
    """One job's verdicts, locked by this process: use it by ``with``. ``output`` is the folder, or the ``.parquet`` (or
    ``.pq``) file that it becomes; ``job`` all that the verdicts depend on, as plain JSON."""

    def __init__(self, output: Path, job: Mapping[str, Any]) -> None:
        self.output, self._file = output, output if output.suffix.lower() in PARQUET_SUFFIXES else None
        self.folder = output if self._file is None else output.with_name(f"{output.name}.parts")
        # As the manifest holds it, in which a tuple is a list: what is there is compared with it.
        self.job, self.shards = json.loads(json.dumps(job)), math.ceil(job["rows"] / job["shard_rows"])
        self._claim()

    @property
    def rejected(self) -> Path:
        return self.folder / REJECTED if self._file is None else self._file.with_suffix(".rejected.jsonl")

    def _claim(self) -> None:
        if (self.folder / MANIFEST).exists():
            self._require_same(self.folder)
        elif self.folder.exists() and (
            not self.folder.is_dir() or [p for p in self.folder.iterdir() if p.name != LOCK and not is_part(p)]
        ):
            raise RunError(f"{self.folder} is there and holds no verdicts of alora's; give another output=")
        if self._file is not None and self._file.exists():
            self._require_same(self._file)
            self._remove()  # killed before it was removed
        elif self._file is not None and self.rejected.exists() and not self.folder.exists():
            raise RunError(f"{self.rejected} is there already; give another output=, or move it away")

    def _require_same(self, path: Path) -> None:
        before, now = (dict(leaves(job)) for job in (read_manifest(path)["job"], self.job))
        pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
        if changed := [(key, *pair) for key, pair in pairs.items() if pair[0] != pair[1]]:
            text = ", ".join(f"{key} ({shortened(old)}, now {shortened(new)})" for key, old, new in changed[:5])
            raise RunError(f"{path} holds verdicts of another job: {text}; give another output=, or remove it")

    def _remove(self) -> None:
        """Remove the folder of a file; its manifest last, for a folder without one is not recognised as alora's."""
        for own in (_PARTS, _OWN):
            remove_own(self.folder, own)

    def read_result(self) -> Mapping[str, Any] | None:
        """The job's result; None while it is not done, or where a shard of the folder is missing."""
        path = self.folder if self._file is None else self._file
        if not (path / MANIFEST).exists() and not path.is_file():
            return None
        done = read_manifest(path).get("done")
        if done is not None and self._file is None:
            (self.folder / LOCK).unlink(missing_ok=True)  # of a process that was killed behind the manifest
            return None if list(self.missing()) else done
        return done

    def __enter__(self) -> Self:
        self._lock = alone_in(self.folder, "output=")
        sweep(self.folder)
        if not (self.folder / MANIFEST).exists() or read_manifest(self.folder).get("done"):
            write_json(self.folder / MANIFEST, sealed({"job": self.job}))
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        (self.folder / LOCK).unlink(missing_ok=True)

    def rows_of(self, shard: int) -> int:
        return len(shard_rows(self.job, shard))

    def missing(self) -> Iterator[int]:
        return (shard for shard in range(self.shards) if not self._shard(shard).exists())

    def write(self, shard: int, rows: Iterable[ScoredRow | RefusedRow]) -> None:
        """Write one shard, whose rows must be complete; it needs memory for the shard alone."""
        given = list(rows)
        scored = [row for row in given if isinstance(row, ScoredRow)]
        refused = [row for row in given if isinstance(row, RefusedRow)]
        if len(given) != self.rows_of(shard):
            raise DataError(f"shard {shard} has {len(given)} rows, not {self.rows_of(shard)}: the rows changed")
        self._refused(shard).unlink(missing_ok=True)  # of a try that was killed before the shard was whole
        if refused:
            lines = (json.dumps(vars(row)) + "\n" for row in sorted(refused, key=lambda row: row.row))
            write_pieces(self._refused(shard), lines)
        with whole(self._shard(shard)) as staged:
            table = pyarrow.Table.from_pylist([_columns(row) for row in scored], schema(self.policies))
            pyarrow.parquet.write_table(table, staged, **_WRITTEN)

    def finish(self) -> Mapping[str, Any]:
        """Join the shards' files, and return the job's result."""
        sweep(self.folder)  # what actors left that died
        counts = sum(map(self._counted, range(self.shards)), Counter[str]())
        flagged = {policy: counts[policy] for policy in self.policies}
        done = {"scored": counts[""], "rejected": self.job["rows"] - counts[""], "flagged": flagged}
        refused = [file for file in map(self._refused, range(self.shards)) if file.exists()]
        if refused:
            write_pieces(self.rejected, (read_whole(file, _LONGEST) for file in refused))
        elif self._file is None:
            self.rejected.unlink(missing_ok=True)  # of shards that were scored again
        manifest = sealed({"job": self.job, "done": done})
        if self._file is None:
            write_json(self.folder / MANIFEST, manifest)
            return done
        columns = schema(self.policies).with_metadata({METADATA: json.dumps(manifest).encode()})
        with whole(self._file) as staged, pyarrow.parquet.ParquetWriter(staged, columns, **_WRITTEN) as writer:
            for shard in range(self.shards):
                writer.write_table(pyarrow.parquet.read_table(self._shard(shard)).cast(columns))
        self._remove()
        return done

    def _counted(self, shard: int) -> Counter[str]:
        """How many rows of a shard each policy flags, and under "" how many rows it has."""
        rows, counts, file = shard_rows(self.job, shard), Counter[str](), self._refused(shard)
        for table in checked(self._shard(shard), self.job, rows, schema(self.policies).names):  # every page of it
            counts[""] += len(table)
            for policy in self.policies:
                counts[policy] += sum(table[f"{policy}_flagged"].to_pylist())
        refused = read_whole(file, _LONGEST).splitlines() if file.exists() else []
        if counts[""] + len(refused) != len(rows):
            raise RunError(
                f"{self._shard(shard)} and {file.name} are not of rows {rows[0]} to {rows[-1]}; remove the first, and "
                "run the same command again"
            )
        return counts

    @property
    def policies(self) -> list[str]:
        return list(self.job["policies"])

    def _shard(self, number: int) -> Path:
        return self.folder / shard_name(number)

    def _refused(self, number: int) -> Path:
        return self.folder / f"rejected-{number:05}.jsonl"


def _columns(row: ScoredRow) -> dict[str, Any]:
    own = {name: getattr(row, name) for name in ("row", "id", "time", "prefix_tokens", "truncated")}
    for verdict in row.verdicts:
        values = verdict.probability, verdict.label, verdict.violated, verdict.threshold, verdict.adapter_digest
        own |= {f"{verdict.policy}_{field}": value for field, value in zip(FIELDS, values, strict=True)}
    return own
