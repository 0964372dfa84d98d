"""Where rows come from: JSONL files, Parquet files, hub data sets. Each row arrives as plain data with its place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from alora.errors import DataError, MissingDependency
from alora.findings import Findings

HUB = "hub:"
LONGEST_NUMBER = 1000  # digits; Python itself refuses more than 4300
MOST_ROWS, LARGEST = 10_000_000, 4 * 2**30  # of Parquet: rows, and bytes when unpacked
LONGEST_LINE = 64 * 2**20  # bytes; longer is no row but a file without line ends
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
_UTF8_BOM = b"\xef\xbb\xbf"
_FOREIGN = {
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"\x1f\x8b": "compressed with gzip; decompress it first",
    b"PK\x03\x04": "a zip file; unpack it first",
    b"PAR1": "a Parquet file; name it .parquet",
}


class Row(NamedTuple):
    """One row as it was read: ``train.jsonl:17`` and what stands there."""

    where: str
    value: Any


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
        raise DataError(f"{path} is a folder; give a .jsonl or .parquet file, or hub:{path} for a data set's folder")
    if not is_there:
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device and no file, and rows are read more than once; save them first")
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _read_parquet(path)
    if path.suffix.lower() in JSONL_SUFFIXES:
        return _read_jsonl(path, findings)
    raise DataError(f"{path}: the ending {path.suffix!r} is not known; give .jsonl, .parquet or hub:NAME")


def parse_json(text: str) -> Any:
    """JSON without the traps: a key that is there twice, or nesting without end, is an error.

    Raises:
        ValueError: with a message that completes "not JSON: ...".
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        cut = ", the text ends too early" if error.pos >= len(text.rstrip()) else ""
        raise ValueError(f"{error.msg} at column {error.colno}{cut}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} digits, {digits[:8]}...; shorten it, or make it a text in quotes")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shortened(key)} is there twice")
        result[key] = value
    return result


def shortened(value: Any) -> str:
    """``repr`` of what a user's row holds, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _read_jsonl(path: Path, findings: Findings) -> Iterator[Row]:
    try:
        with path.open("rb") as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                where = f"{path.name}:{number}"
                if number == 1:
                    _refuse_foreign(path, line)
                    line = line.removeprefix(_UTF8_BOM)
                if len(line) > LONGEST_LINE:
                    findings.add(where, f"the line is longer than {LONGEST_LINE // 2**20} MiB; write one row per line")
                    return
                if b"\x00" in line:
                    raise DataError(f"{where} holds NUL bytes, so it is no text file; give JSONL in UTF-8")
                if line.strip():
                    yield from _parse_line(where, line, findings)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; check the file and its permissions") from error


def _parse_line(where: str, line: bytes, findings: Findings) -> Iterator[Row]:
    try:
        yield Row(where, parse_json(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        findings.add(where, f"not UTF-8: {error.reason} at byte {error.start} of the line; save the file as UTF-8")
    except ValueError as error:
        findings.add(where, f"not JSON: {error}; each line is one object")


def _refuse_foreign(path: Path, start: bytes) -> None:
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {what}")


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in _parquet_batches(path):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{path.name}:{number}", value)
    except DataError:
        raise
    # Arrow takes texts that are not UTF-8 and dates beyond Python's; both fail only as they become Python's own.
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a Parquet file that can be read: {_one_line(error)}") from error


def _parquet_batches(path: Path) -> Iterator[Any]:
    """The rows of a Parquet file, of which a kilobyte can hold gigabytes: texts stay in their dictionaries."""
    import pyarrow.parquet

    columns = pyarrow.parquet.read_schema(path).names
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise DataError(f"{path}: the column {shortened(twice[0])} is there twice; rename one of them")
    about = pyarrow.parquet.read_metadata(path)
    leaves = [about.schema.column(number) for number in range(about.num_columns)]
    chunks = [about.row_group(group).column(n) for group in range(about.num_row_groups) for n in range(len(leaves))]
    values = sum(chunk.num_values for chunk in chunks)
    size = sum(max(chunk.total_uncompressed_size, 0) for chunk in chunks)
    if about.num_rows > MOST_ROWS or values > 8 * MOST_ROWS or size > LARGEST:
        _refuse_large(path, f"{about.num_rows} rows, {values} values and {size / 2**30:.1f} GiB")
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        size = 0
        for batch in file.iter_batches(batch_size=1024):
            size += sum(map(_expanded, batch.columns))
            if size > LARGEST:
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
