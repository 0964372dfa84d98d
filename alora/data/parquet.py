"""Rows of Parquet files."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.parquet

from alora.data.files import Row, class_names, with_class_names, without_nulls
from alora.errors import DataError, one_line


def read_parquet(path: Path, name: str, classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Its rows, as plain data, with ``name`` in ``Row.where``; DataError where it cannot be read. ``classes`` are names
    of class numbers by column, next to those that the file itself holds."""
    try:
        known = {**classes, **_classes(path)}
        with pyarrow.parquet.ParquetFile(path) as file:  # one batch in memory at a time
            rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
            for number, value in enumerate(rows, 1):
                cells = {column: without_nulls(cell) for column, cell in value.items()}
                yield with_class_names(Row(f"{name}:{number}", cells), known)
    # Arrow takes texts that are not UTF-8 and dates beyond Python's; both fail only as they become Python's own.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read: {one_line(error)}") from error


def _classes(path: Path) -> dict[str, list[str]]:
    """Names of class numbers, as the package datasets writes them into a file."""
    kept = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"huggingface")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return class_names(json.loads(kept or b"{}")["info"]["features"])
    return {}
