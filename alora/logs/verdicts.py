"""A folder of verdicts on the rows of a log: Parquet shards in the rows' order, written whole, one after the other.

    manifest.json             the job (which rows, policies, base, settings), and what came of it once it is done
    verdicts-00000.parquet    the verdicts on the first ``shard_rows`` rows, and so on
    rejected.jsonl            rows without verdicts, each with the reasons

A shard that is there is complete, so a killed job goes on behind the last one, and ends with the same bytes: each shard
is scored by itself. ``verdicts.parquet`` as output is such a folder until the job is done, joined into one file then.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alora.atomic import sweep, whole, write_json, write_pieces
from alora.errors import DataError, RunError

if TYPE_CHECKING:
    import pyarrow

    from alora.verdict import Verdict

MANIFEST, REJECTED, LOCK = "manifest.json", "rejected.jsonl", ".lock"
FIELDS = ("probability", "label", "flagged", "threshold", "adapter")  # of each policy's columns, as POLICY_FIELD
_SHARDS, _REFUSED = "verdicts-*.parquet", "rejected-*.jsonl"
_METADATA = b"alora"  # the manifest, in a Parquet file's own
_ZIPPED = "zstd"


@dataclass(frozen=True)
class Scored:
    """A row with its verdicts."""

    row: int
    id: str
    time: str | None
    prefix_tokens: int
    truncated: bool
    verdicts: Sequence[Verdict]


@dataclass(frozen=True)
class Refused:
    """A row without a verdict."""

    row: int
    where: str
    reasons: Sequence[str]


class VerdictFolder:
    """The place of one job's verdicts, held by this process: use it by ``with``.

    Args:
        output: the folder, or the ``.parquet`` file that it becomes.
        job: all that the verdicts depend on, as plain JSON: what is there already was made by the same job. It has
            ``rows`` (their number) and ``shard_rows``.

    Raises:
        RunError: the place holds another job's verdicts, something else, or another process works on it.
    """

    def __init__(self, output: Path, job: Mapping[str, Any]) -> None:
        self.output, self._file = output, output if output.suffix == ".parquet" else None
        self.folder = output if self._file is None else output.with_name(f"{output.name}.parts")
        self.job, self.shards = dict(job), math.ceil(job["rows"] / job["shard_rows"])
        self._claim(output)

    @property
    def rejected(self) -> Path:
        """Where the rows without verdicts stand."""
        return self.folder / REJECTED if self._file is None else self._file.with_suffix(".rejected.jsonl")

    def _claim(self, output: Path) -> None:
        if (self.folder / MANIFEST).exists():
            self._require_same(read_manifest(self.folder), self.folder)
        elif self.folder.exists() and (not self.folder.is_dir() or {p.name for p in self.folder.iterdir()} - {LOCK}):
            raise RunError(f"{self.folder} is there and holds no verdicts of alora's; give another output=")
        if self._file is not None and self._file.exists():
            self._require_same(read_manifest(output), output)
            shutil.rmtree(self.folder, ignore_errors=True)  # killed before it was removed
        elif self._file is not None and self.rejected.exists() and not self.folder.exists():
            raise RunError(f"{self.rejected} is there already; give another output=, or move it away")

    def _require_same(self, found: Mapping[str, Any], place: Path) -> None:
        before = found["job"]
        changed = [key for key in {**before, **self.job} if before.get(key) != self.job.get(key)]
        if changed:
            told = ", ".join(f"{key} ({_short(before.get(key))}, now {_short(self.job.get(key))})" for key in changed)
            raise RunError(f"{place} holds verdicts of another job: {told}; give another output=, or remove it")

    @property
    def done(self) -> Mapping[str, Any] | None:
        """What came of the job; None while it is not done."""
        place = self.folder if self._file is None else self._file
        return read_manifest(place).get("done") if (place / MANIFEST).exists() or place.is_file() else None

    def __enter__(self) -> VerdictFolder:
        from filelock import FileLock, Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / LOCK, timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RunError(
                f"another alora process writes {self.folder}; wait for it, or give another output="
            ) from error
        sweep(self.folder)
        if not (self.folder / MANIFEST).exists():
            write_json(self.folder / MANIFEST, {"job": self.job})
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        (self.folder / LOCK).unlink(missing_ok=True)

    def rows_of(self, shard: int) -> int:
        """How many rows of the log it is about."""
        size = self.job["shard_rows"]
        return min(size, self.job["rows"] - shard * size)

    def missing(self) -> Iterator[int]:
        """The shards to be written."""
        return (shard for shard in range(self.shards) if not self._shard(shard).exists())

    def write(self, shard: int, rows: Iterable[Scored | Refused]) -> None:
        """Write one shard, whose rows are all there; what it takes is at most the shard."""
        import pyarrow.parquet

        scored: list[Scored] = []
        refused: list[Refused] = []
        for row in rows:
            (scored if isinstance(row, Scored) else refused).append(row)  # type: ignore[arg-type]
        if (count := len(scored) + len(refused)) != self.rows_of(shard):
            raise DataError(f"shard {shard} has {count} rows, not {self.rows_of(shard)}: the rows changed")
        if refused:
            lines = (json.dumps(vars(row)) + "\n" for row in sorted(refused, key=lambda row: row.row))
            write_pieces(self.folder / f"rejected-{shard:05}.jsonl", lines)
        with whole(self._shard(shard)) as staged:
            pyarrow.parquet.write_table(_table(scored, self._schema()), staged, compression=_ZIPPED)

    def finish(self) -> Mapping[str, Any]:
        """Join what belongs together, and say what came of the job."""
        sweep(self.folder)  # what actors left that died
        refused = sorted(self.folder.glob(_REFUSED))
        if refused:
            write_pieces(self.rejected, (file.read_text(encoding="utf-8") for file in refused))
        done = self._counted()
        if self._file is None:
            write_json(self.folder / MANIFEST, {"job": self.job, "done": done})
            for file in refused:
                file.unlink()
        else:
            self._join(self._file, {"job": self.job, "done": done})
            shutil.rmtree(self.folder)
        return done

    def _join(self, file: Path, manifest: Mapping[str, Any]) -> None:
        import pyarrow.parquet

        schema = self._schema().with_metadata({_METADATA: json.dumps(manifest).encode()})
        with whole(file) as staged, pyarrow.parquet.ParquetWriter(staged, schema, compression=_ZIPPED) as writer:
            for shard in range(self.shards):
                writer.write_table(pyarrow.parquet.read_table(self._shard(shard)).cast(schema))

    def _counted(self) -> dict[str, Any]:
        flagged = dict.fromkeys(self.policies, 0)
        scored = 0
        for table in tables(self.folder, [f"{policy}_flagged" for policy in flagged]):
            scored += len(table)
            for policy in flagged:
                flagged[policy] += sum(table[f"{policy}_flagged"].to_pylist())
        return {"scored": scored, "rejected": self.job["rows"] - scored, "flagged": flagged}

    @property
    def policies(self) -> list[str]:
        return list(self.job["policies"])

    def _shard(self, number: int) -> Path:
        return self.folder / f"verdicts-{number:05}.parquet"

    def _schema(self) -> pyarrow.Schema:
        import pyarrow

        text = pyarrow.string()
        own = {"probability": pyarrow.float64(), "label": text, "flagged": pyarrow.bool_(),
               "threshold": pyarrow.float64(), "adapter": text}  # fmt: skip
        columns = {"row": pyarrow.int64(), "id": text, "time": text, "prefix_tokens": pyarrow.int64(),
                   "truncated": pyarrow.bool_()}  # fmt: skip
        columns |= {f"{policy}_{field}": own[field] for policy in self.policies for field in FIELDS}
        return pyarrow.schema(list(columns.items()))


def _table(rows: Sequence[Scored], schema: pyarrow.Schema) -> pyarrow.Table:
    import pyarrow

    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row in rows:
        for name in ("row", "id", "time", "prefix_tokens", "truncated"):
            columns[name].append(getattr(row, name))
        for verdict in row.verdicts:
            own = (verdict.probability, verdict.label, verdict.violated, verdict.threshold, verdict.adapter_digest)
            for field, value in zip(FIELDS, own, strict=True):
                columns[f"{verdict.policy}_{field}"].append(value)
    return pyarrow.table(columns, schema=schema)


def read_manifest(place: Path) -> dict[str, Any]:
    """The manifest of a folder of verdicts, or of the file that one became.

    Raises:
        RunError: it is neither.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        if place.is_dir():
            found = json.loads((place / MANIFEST).read_bytes())
        else:
            metadata = pyarrow.parquet.read_schema(place).metadata or {}
            found = json.loads(metadata[_METADATA])
        if {"rows", "policies", "shard_rows"} <= found["job"].keys():
            return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException):
        pass
    raise RunError(f"{place} holds no verdicts; alora score artifact=DIR data=ROWS output=FILE.parquet writes them")


def tables(place: Path, columns: Sequence[str]) -> Iterator[pyarrow.Table]:
    """Some columns of a folder's or a file's verdicts, in the rows' order, a shard at a time."""
    import pyarrow
    import pyarrow.parquet

    for file in sorted(place.glob(_SHARDS)) if place.is_dir() else [place]:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for group in range(opened.num_row_groups):
                yield opened.read_row_group(group, columns=list(columns))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
