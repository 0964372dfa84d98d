"""Read verdicts back from a folder or a file."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from alora.config.schema import ColumnSettings
from alora.errors import RunError, first_line
from alora.received import Folder, decode, unsealed
from alora.text import read_whole
from alora.verdict import TENTHS

MANIFEST = "manifest.json"
METADATA = b"alora"  # the manifest, in a Parquet file's own
FIELDS = ("probability", "label", "flagged", "threshold", "adapter")  # of each policy's columns, as POLICY_FIELD
_SHARD = re.compile(r"verdicts-(\d{5,18})\.parquet")


@dataclass(frozen=True)
class _Judge:
    adapter: str
    threshold: float
    labels: list[str] = field(default_factory=list)
    temperature: float = 1.0
    bias: float = 0.0
    histogram: list[int] | None = None
    prompt: dict[str, Any] = field(default_factory=dict)
    suffix: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.histogram is not None and len(self.histogram) != TENTHS:
            raise TypeError(f"a histogram is not {TENTHS} counts")


@dataclass(frozen=True)
class _Reading:
    columns: ColumnSettings
    role_map: dict[str, str]
    skip_media: bool
    format: str | None = None
    reasoning: str = "leave_out"
    system: str = "read"


@dataclass(frozen=True)
class _Job:
    rows: int
    rows_digest: str
    policies: dict[str, _Judge]
    shard_rows: int
    time: str | None = None
    reading: _Reading | None = None
    engine: str = ""
    max_tokens: int | None = None
    base: dict[str, Any] = field(default_factory=dict)
    alora: str = ""

    def __post_init__(self) -> None:
        if min(self.rows, self.shard_rows) < 1 or not self.policies:
            raise TypeError("there are no rows or no policies")


@dataclass(frozen=True)
class _Done:
    scored: int
    rejected: int
    flagged: dict[str, int]


@dataclass(frozen=True)
class _Manifest:
    job: _Job
    done: _Done | None = None
    sha256: str = ""


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a folder of verdicts, or of the file that one became."""
    try:
        if path.is_dir():
            Folder(path, RunError, "score the rows again")
            manifest = json.loads(read_whole(path / MANIFEST))
        elif path.is_file():
            manifest = json.loads((pyarrow.parquet.read_schema(path).metadata or {})[METADATA])
        else:
            raise LookupError("there is no such file")
    except (OSError, ValueError, LookupError, pyarrow.ArrowException) as error:
        raise RunError(
            f"{path} holds no verdicts in Parquet; alora score artifact=DIR data=ROWS output=FILE.parquet writes them"
        ) from error
    try:
        decode(_Manifest, manifest)
    except TypeError as error:
        raise RunError(f"{path} holds no verdicts that can be used: {error}; score the rows again") from error
    return unsealed(manifest, path, RunError, "score the rows again")


def schema(policies: Sequence[str]) -> pyarrow.Schema:
    text = pyarrow.string()
    own = {"probability": pyarrow.float64(), "label": text, "flagged": pyarrow.bool_(),
           "threshold": pyarrow.float64(), "adapter": text}  # fmt: skip
    columns = {"row": pyarrow.int64(), "id": text, "time": text, "prefix_tokens": pyarrow.int64(),
               "truncated": pyarrow.bool_()}  # fmt: skip
    columns |= {f"{policy}_{field}": own[field] for policy in policies for field in FIELDS}
    return pyarrow.schema(list(columns.items()))


def shard_name(number: int) -> str:
    return f"verdicts-{number:05}.parquet"


def shard_rows(job: Mapping[str, Any], shard: int) -> range:
    return range(shard * job["shard_rows"], min((shard + 1) * job["shard_rows"], job["rows"]))


def tables(path: Path, columns: Sequence[str]) -> Iterator[pyarrow.Table]:
    """Some columns of a folder's or a file's verdicts, in the rows' order, a thousand rows at a time."""
    manifest = read_manifest(path)
    job, done, rows = manifest["job"], manifest.get("done"), 0
    files = [(path, range(job["rows"]))]
    if path.is_dir():
        numbers = sorted(int(name[1]) for file in path.iterdir() if (name := _SHARD.fullmatch(file.name)))
        files = [(path / shard_name(number), shard_rows(job, number)) for number in numbers]
    for file, part in files:
        for table in checked(file, job, part, columns):
            rows += len(table)
            yield table
    if done and rows != done["scored"]:
        remedy = "the same alora score command scores the rest" if path.is_dir() else "remove it, and score it again"
        raise RunError(f"{path} holds {rows} of {done['scored']} verdicts; {remedy}")


def checked(file: Path, job: Mapping[str, Any], rows: range, columns: Sequence[str]) -> Iterator[pyarrow.Table]:
    """Some columns of verdicts on ``rows``, in their order; every page by its checksum."""
    try:
        if not pyarrow.parquet.read_schema(file).equals(schema(list(job["policies"]))):
            raise ValueError("its columns are not those of its policies")
        names, least = list(dict.fromkeys(["row", *columns])), rows.start
        with pyarrow.parquet.ParquetFile(file, page_checksum_verification=True) as stored:
            for batch in stored.iter_batches(batch_size=1024, columns=names):
                row_N = batch.column("row").to_numpy()
                if row_N[0] < least or row_N[-1] >= rows.stop or (row_N[1:] <= row_N[:-1]).any():
                    raise ValueError(f"its rows are not of {rows.start} to {rows.stop - 1}, in their order")
                least = int(row_N[-1]) + 1
                yield pyarrow.Table.from_batches([batch])
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise RunError(
            f"{file} holds no verdicts that can be used: {first_line(error)}; remove it, and score its rows again"
        ) from error
