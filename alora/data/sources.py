"""Where rows come from: text files, Parquet files, hub data sets. Each row arrives as plain data with its place."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alora.data.formats import Row, read_text, shortened
from alora.errors import DataError, MissingDependency
from alora.findings import Findings

HUB = "hub:"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".csv", ".tsv")
MOST_ROWS, LARGEST = 10_000_000, 4 * 2**30  # of Parquet: rows, and bytes when unpacked
PARQUET_SUFFIXES = (".parquet", ".pq")
Source = str | Sequence[str]  # a file or a data set, or several whose rows follow each other


def read_rows(source: str, findings: Findings) -> Iterator[Row]:
    """Every row of ``source``: a path, or ``hub:NAME``, ``hub:NAME:SPLIT``, ``hub:NAME:CONFIG:SPLIT``.

    A row that cannot be read goes to ``findings``, and reading goes on.

    Raises:
        DataError: the source as a whole cannot be read.
    """
    if source.startswith(HUB):
        return _read_hub(source)
    path = Path(source)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except OSError as error:
        raise DataError(f"{source}: {error.strerror or error}; check the path and its permissions") from error
    if is_folder:
        raise DataError(f"{path} is a folder; give a file in it, such as a .jsonl, or hub:{path} for a data set")
    if not is_there:
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device and no file, and rows are read more than once; save them first")
    suffix = Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _read_parquet(path)
    if suffix in (*JSON_SUFFIXES, *TABLE_SUFFIXES):
        return read_text(path, path.name, suffix in TABLE_SUFFIXES, findings)
    known = ", ".join((*JSON_SUFFIXES, *TABLE_SUFFIXES, PARQUET_SUFFIXES[0]))
    raise DataError(f"{path}: the ending {suffix!r} is not known; give {known} (text also with .gz) or hub:NAME")


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in parquet_batches(path):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{path.name}:{number}", value)
    except DataError:
        raise
    # Arrow takes texts that are not UTF-8 and dates beyond Python's; both fail only as they become Python's own.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read: {_one_line(error)}") from error


def parquet_batches(path: Path, columns: Sequence[str] | None = None, streamed: bool = False) -> Iterator[Any]:
    """The rows of a Parquet file, of which a kilobyte can hold gigabytes: texts stay in their dictionaries.

    Args:
        columns: these alone; None: all.
        streamed: the caller keeps nothing of a batch, so the bounds are on a group of rows and on a batch.
    """
    import pyarrow.parquet

    names = pyarrow.parquet.read_schema(path).names
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{path}: the column {shortened(twice[0])} is there twice; rename one of them")
    about = pyarrow.parquet.read_metadata(path)
    every = range(about.num_row_groups)
    for part in ([number] for number in every) if streamed else [every]:
        groups = [about.row_group(number) for number in part]
        chunks = [group.column(number) for group in groups for number in range(about.num_columns)]
        rows, values = sum(group.num_rows for group in groups), sum(chunk.num_values for chunk in chunks)
        size = sum(max(chunk.total_uncompressed_size, 0) for chunk in chunks)
        if rows > MOST_ROWS or (values > 8 * MOST_ROWS and not streamed) or size > LARGEST:
            _refuse_large(path, f"{rows} rows, {values} values and {size / 2**30:.1f} GiB")
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        size = 0
        for batch in file.iter_batches(batch_size=1024, columns=columns):
            size = sum(map(_expanded, batch.columns)) + (0 if streamed else size)
            if size > (LARGEST >> 4 if streamed else LARGEST):
                _refuse_large(path, f"{size / 2**30:.1f} GiB and more")
            yield batch


def _refuse_large(path: Path, found: str) -> None:
    raise DataError(
        f"{path} holds {found} when it is unpacked; at most {MOST_ROWS} rows, eight values for each and "
        f"{LARGEST >> 30} GiB are read: give fewer rows or columns"
    )


def _expanded(array: Any) -> int:
    """Bytes of an Arrow array with every text of its dictionary written out."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_dictionary(array.type):
        lengths = pyarrow.compute.call_function("binary_length", [array.dictionary]).take(array.indices)
        return pyarrow.compute.call_function("sum", [lengths]).as_py() or 0
    if pyarrow.types.is_struct(array.type):
        return sum(map(_expanded, array.flatten()))
    return _expanded(array.flatten()) if hasattr(array, "flatten") else array.nbytes


def _read_hub(source: str) -> Iterator[Row]:
    parts = source.removeprefix(HUB).split(":")
    if len(parts) > 3 or not all(parts):
        raise DataError(f"{source!r}: write hub:NAME, hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT")
    name, split = parts[0], parts[-1] if len(parts) > 1 else "train"
    data = _load_hub(name, parts[1] if len(parts) == 3 else None, split, source)
    classes = {column: feature.names for column, feature in data.features.items() if hasattr(feature, "names")}
    for number, value in enumerate(data, 1):
        for column, names in classes.items():  # a class number means nothing without its data set
            if isinstance(value.get(column), int) and 0 <= value[column] < len(names):
                value[column] = names[value[column]]
        yield Row(f"{name}:{split}:{number}", value)


def _load_hub(name: str, config: str | None, split: str, source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency(f"{source} needs the package datasets; pip install datasets") from error
    saved = Path(name) / "dataset_info.json", Path(name) / "dataset_dict.json"
    try:
        if any(path.is_file() for path in saved):  # written by save_to_disk
            data = datasets.load_from_disk(name)
        else:
            data = datasets.load_dataset(name, config)
    except Exception as error:  # the hub, its cache and its loaders raise a dozen kinds
        raise DataError(
            f"{source}: the data set cannot be loaded: {_one_line(error)}; check name and network"
        ) from error
    if isinstance(data, datasets.Dataset):
        return data
    if split not in data:
        raise DataError(f"{source}: there is no split {split!r}; it has {', '.join(map(str, data))}")
    return data[split]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
