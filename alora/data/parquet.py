"""Rows of Parquet files, within bounds: a kilobyte of one can hold gigabytes."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from alora.data.formats import MOST_INFLATED, Row, class_names, shortened, with_class_names, without_nulls
from alora.errors import DataError, one_line

MOST_ROWS, LARGEST = 10_000_000, 4 * 2**30  # of a group: rows, and bytes when unpacked
MOST_VALUES = 2**22  # in a thousand rows


def read_parquet(path: Path, name: str, classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Its rows, as plain data, with ``name`` in ``Row.where``; DataError where it cannot be read.

    Args:
        classes: names of class numbers by column, next to those that the file itself holds.
    """
    try:
        number, own = 0, _classes(path)
        for column in own.keys() & classes:
            if own[column] != classes[column]:
                raise DataError(
                    f"{name}: it names the classes of {column} {shortened(own[column])}, and the card of its data set "
                    f"{shortened(classes[column])}; mend one of them"
                )
        known = {**classes, **own}
        for batch in parquet_batches(path):
            for value in batch.to_pylist():
                number += 1
                cells = {column: without_nulls(cell) for column, cell in value.items()}
                yield with_class_names(Row(f"{name}:{number}", cells), known)
    except DataError:
        raise
    # Arrow takes texts that are not UTF-8 and dates beyond Python's; both fail only as they become Python's own.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read: {one_line(error)}") from error


def _classes(path: Path) -> dict[str, list[str]]:
    """Names of class numbers, as the package datasets writes them into a file."""
    kept = (pyarrow.parquet.read_schema(path).metadata or {}).get(b"huggingface")
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        return class_names(json.loads(kept or b"{}")["info"]["features"])
    return {}


def parquet_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """The rows of a Parquet file, one batch in memory at a time: texts stay in their dictionaries.

    Args:
        columns: these alone; None: all.
    """
    names = pyarrow.parquet.read_schema(path).names
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{path}: the column {shortened(twice[0])} is there twice; rename one of them")
    about = pyarrow.parquet.read_metadata(path)
    every, packed = range(about.num_row_groups), path.stat().st_size
    if about.num_rows > max(MOST_ROWS, packed):
        raise DataError(
            f"{path} holds {about.num_rows} rows in {packed} bytes: no row takes less than one; write it again"
        )
    for group in map(about.row_group, every):
        size = sum(max(group.column(number).total_uncompressed_size, 0) for number in range(about.num_columns))
        if group.num_rows > MOST_ROWS or size > LARGEST:
            raise DataError(
                f"{path} holds a group of {group.num_rows} rows and, unpacked, {size / 2**30:.1f} GiB; at most "
                f"{MOST_ROWS} rows and {LARGEST / 2**30:.1f} GiB of a row group are read: write smaller ones"
            )
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        total, bound = 0, max(LARGEST, MOST_INFLATED * packed)
        # Each group by itself: no batch of Arrow's has texts inside of lists from the dictionaries of two.
        groups = (file.iter_batches(batch_size=1024, row_groups=[number], columns=columns) for number in every)
        for batch in chain.from_iterable(groups):
            if (values := sum(map(_values, batch.columns))) > MOST_VALUES:
                raise DataError(
                    f"{path} holds {values} values in {len(batch)} rows when it is unpacked; at most {MOST_VALUES} are "
                    "read in a thousand rows: split long rows"
                )
            size = sum(map(_expanded, batch.columns))
            total += size
            if size > LARGEST >> 4 or total > bound:
                raise DataError(
                    f"{path} holds {total / 2**30:.1f} GiB and more when it is unpacked, and {size / 2**30:.1f} GiB in "
                    f"the last {len(batch)} rows; at most {bound / 2**30:.1f} GiB are read, {LARGEST / 2**34:.2f} of "
                    "a thousand rows: shorten them, or write several files"
                )
            yield batch


def _values(array: Any) -> int:
    """Values of an Arrow array, nested ones included: each becomes a Python object."""
    if pyarrow.types.is_dictionary(array.type) or not hasattr(array, "flatten"):
        return len(array)
    parts = [array.keys, array.items] if pyarrow.types.is_map(array.type) else array.flatten()
    return len(array) + sum(map(_values, parts if isinstance(parts, list) else [parts]))


def _expanded(array: Any) -> int:
    """Bytes of an Arrow array with every text of its dictionary written out."""
    if pyarrow.types.is_dictionary(array.type):
        lengths = pyarrow.compute.call_function("binary_length", [array.dictionary]).take(array.indices)
        return pyarrow.compute.call_function("sum", [lengths]).as_py() or 0
    if pyarrow.types.is_struct(array.type):
        return sum(map(_expanded, array.flatten()))
    if pyarrow.types.is_map(array.type):
        return _expanded(array.keys) + _expanded(array.items)
    return _expanded(array.flatten()) if hasattr(array, "flatten") else array.nbytes
