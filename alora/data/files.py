"""Text files of rows, also packed by gzip: JSON lines, CSV and TSV, one row in memory at a time; a JSON array and
objects of tables, read whole."""

import ast
import contextlib
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alora.errors import DataError

SEPARATORS = (",", ";", "\t")  # of a table; its first line shows which
TABLES = ("data", "rows", "examples", "items", "records", "instances", "dataset", "samples", "results", "conversations")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "holdout"), "test"),
}
CHUNK = 2**20
SHOWN = 8  # names in a message
_GZIP, UTF8_BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
_FOREIGN = {
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"PK\x03\x04": "a spreadsheet or a zip file; save the table as CSV in UTF-8, or unpack the file",
    b"PAR1": "a Parquet file; name it .parquet",
}
Stream = io.BufferedReader | gzip.GzipFile
# Messages as Python prints them: pandas writes a cell so.
PRINTED = re.compile(r"""\s*\[?\s*\{\s*['"](?:role|from|type|content|value|messages)['"]\s*:""")
_CLASS_NUMBER = re.compile(r"\s*(-?[0-9]{1,99})(?:\.0*)?\s*")


class Row(NamedTuple):
    """One row as it was read: where (``train.jsonl:17``) and its value, or why there is none (code and text)."""

    where: str
    value: Any
    problem: tuple[str, str] | None = None


def read_text(path: Path, name: str, table: bool, notes: Counter[str]) -> Iterator[Row]:
    """The rows of a ``table`` (CSV, TSV) or of JSON; ``name`` is the file's in ``Row.where``, followed by
    the number of the line or, in a JSON array, of the row."""
    try:
        with _open(path) as stream:
            start = stream.peek(CHUNK)[:CHUNK]
            for magic, what in _FOREIGN.items():
                if start.startswith(magic):
                    raise DataError(f"{path} is {what}")
            if table:
                yield from _read_table(stream, name, start, notes)
            elif (rows := _read_whole(stream, name, start, notes)) is not None:
                yield from (Row(f"{name}:{number}", row) for number, row in enumerate(rows, 1))
            else:
                yield from _read_lines(stream, name)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8 (CSV UTF-8 in a spreadsheet)") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: its gzip data is damaged ({error}); get the file again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; check the file and its permissions") from error


def _open(path: Path) -> Stream:
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP
    return gzip.GzipFile(path) if packed else path.open("rb")


def parse_json(text: str | bytes) -> Any:
    """JSON; ValueError with a message that completes "not JSON: ..."."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at {f'line {error.lineno} ' * (error.lineno > 1)}column {error.colno}") from None
    except RecursionError:
        raise ValueError("its lists and objects are nested too deep") from None


def unpacked(value: Any, printed: re.Pattern[str] = PRINTED) -> Any:
    """A list or an object that a text holds as JSON, or as Python prints it; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    for read in (parse_json, ast.literal_eval) if printed.match(value) else (parse_json,):  # values alone, and no code
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(value.strip())
    return value


def without_nulls(value: Any, in_list: bool = False) -> Any:
    """A table's cell without what the table adds: each object in a list has the keys of all there, the others' null."""
    if isinstance(value, list):
        return [without_nulls(item, True) if isinstance(item, list | dict) else item for item in value]
    if in_list and isinstance(value, dict):
        return {key: without_nulls(item, True) for key, item in value.items() if item is not None or key == "content"}
    return value


def class_names(features: Any) -> dict[str, list[str]]:
    """The names of each column of class numbers, from a data set's ``features`` as its card and its Parquet files hold
    them (``datasets.Features.to_dict``)."""
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[column] = names
    return found


def with_class_names(row: Row, classes: Mapping[str, Sequence[str]]) -> Row:
    """A row with names in place of class numbers, which mean nothing without their data set. A number may be a text,
    and 1 may be 1.0, as tables with gaps write it."""
    if not classes or not isinstance(row.value, dict):
        return row
    named = {}
    for column in row.value.keys() & classes:
        cell, names = row.value[column], classes[column]
        written = _CLASS_NUMBER.fullmatch(str(cell)) if isinstance(cell, str | int | float) else None
        number = int(written[1]) if written else -1
        if 0 <= number < len(names) and not (isinstance(cell, str) and cell.strip() in names):
            named[column] = names[number]
    return row._replace(value=row.value | named)


def shortened(value: Any) -> str:
    """``repr`` of a user's value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def listed(row: Iterable[Any]) -> str:
    """The columns of a row, or other names, for a message."""
    names = list(row)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(map(shortened, names[:SHOWN])) or "no columns") + more


def kind(value: Any) -> str:
    """What a value is, for an error message."""
    return "missing or null" if value is None else f"{type(value).__name__} {shortened(value)}"


def _read_whole(stream: Stream, name: str, start: bytes, notes: Counter[str]) -> list[Any] | None:
    """The rows of a file that is one array, or one object that holds tables or is a row; None for a row a line."""
    first, second = stream.readline().removeprefix(UTF8_BOM), stream.readline()
    is_lines = first.rstrip().endswith(b"]") and second.startswith(b"[")
    is_array = start.removeprefix(UTF8_BOM).lstrip().startswith(b"[") and not is_lines
    spread = is_array or (first.strip() == b"{" and second.lstrip().startswith(b'"'))
    content = None
    if spread or not second.strip():
        try:
            content = parse_json(first + second + stream.read())
        except ValueError as error:
            if spread and isinstance(error, UnicodeDecodeError):
                raise
            if spread:
                raise DataError(f"{name}: not JSON: {error}; write one object per line (jq -c), or an array") from error
    if isinstance(content, list):
        return content
    tables = unwrapped(content) or ([("the file is one row", [content])] if spread else [])
    notes.update(text for text, _ in tables)
    stream.seek(0)
    return [row for _, rows in tables for row in rows] if tables else None


def _read_lines(stream: Stream, name: str) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        where, value, problem = f"{name}:{number}", None, None
        if not (line := line.removeprefix(UTF8_BOM)).strip():
            continue
        try:
            value = parse_json(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            text = f"not UTF-8: {error.reason} at byte {error.start} of the line; save the file as UTF-8"
            problem = "NOT_UTF8", text
        except ValueError as error:
            problem = "NOT_JSON", f"not JSON: {error}; each line is one object"
        yield Row(where, value, problem)


def _read_table(stream: Stream, name: str, start: bytes, notes: Counter[str]) -> Iterator[Row]:
    """CSV as spreadsheets and pandas write it: the header names the columns and shows the separator."""
    first = start.partition(b"\n")[0]
    separator = max(SEPARATORS, key=lambda mark: first.count(mark.encode()))
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(_table_lines(stream), delimiter=separator, strict=True)
    try:
        header = next(reader, [])
        header = next(reader, []) if header == ["sep=", ""] else header  # a line of Excel's, which names the separator
    except csv.Error as error:
        raise DataError(f"{name}:1: not CSV: {error}; the first line names the columns") from error
    if twice := {title for title, times in Counter(header).items() if title and times > 1}:
        raise DataError(f"{name}:1: two columns are named {shortened(min(twice))}; rename one")
    while True:
        where = f"{name}:{reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            text = f"not CSV: {error}; put the text in quotes, and double the quotes in it"
            yield Row(where, None, ("NOT_CSV", text))
            continue
        if cells is None:
            return
        if any(cells[len(header) :]) or 0 < len(cells) < len(header):
            text = f"{len(cells)} cells and {len(header)} columns; put texts with {separator!r} or quotes in quotes"
            yield Row(where, None, ("CELLS", text))
        elif any(cells):
            if separator == "\t" and any("\t" in cell and "\n" in cell for cell in cells):
                notes["a cell in quotes has tabs and line ends: it may be several rows, with quotes in them"] += 1
            yield Row(where, {title: cell or None for title, cell in zip(header, cells, strict=False) if title})


def _table_lines(stream: Stream) -> Iterator[str]:
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:  # type: ignore[arg-type]
        yield from text


def unwrapped(content: Any, nested: bool = False) -> list[tuple[str, list[Any]]]:
    """The rows below ``data`` or the names of splits, or of a table by columns; nothing for a row."""
    if not isinstance(content, dict):
        return []
    names, cells = content.get("columns"), content.get("data")
    if isinstance(names, list) and isinstance(cells, list) and all(isinstance(row, list) for row in cells):
        rows = [dict(zip(names, row, strict=False)) for row in cells]
        return [("the file is a table with its columns' names apart", rows)]
    below = {key: _rows(value, nested) for key, value in content.items() if key.lower() in (*TABLES, *SPLITS)}
    if below := {key: rows for key, rows in below.items() if rows or content == {key: []}}:
        return [
            (f"the rows are read from {key!r} of the file",
             [_row(row) | ({"split": key} if key in SPLITS and len(below) > 1 else {}) for row in rows])
            for key, rows in below.items()
        ]  # fmt: skip
    objects = [value for value in content.values() if isinstance(value, dict) and value]
    if objects and len(objects) == len(content) and all(map(str.isdigit, content)):
        return [("the file is a table by rows", objects)]
    if len(objects) == len(content) and all(name.isdigit() for value in objects for name in value):
        content = {key: [*value.values()] for key, value in content.items()}
    columns = [value for value in content.values() if isinstance(value, list) and value and not is_turns(value)]
    if len(columns) < 2 or len(columns) < len(content) or len({*map(len, columns)}) > 1:
        return []
    rows = [dict(zip(content, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return [("the file is a table by columns", rows)]


def _rows(value: Any, nested: bool) -> list[Any]:
    """The rows of a list, or of a table in the table; none of a list of turns."""
    tables = [] if nested or isinstance(value, list) else unwrapped(value, nested=True)
    rows = value if isinstance(value, list) else [row for _, rows in tables for row in rows]
    return [] if is_turns(rows) else rows


def is_turns(items: list[Any]) -> bool:
    """Whether a list is of messages, and not of rows."""
    return any(isinstance(item, dict) and {"role", "from", "type"} & item.keys() for item in items[:1])


def _row(row: Any) -> dict[str, Any]:
    """A row as an object: a list of two is a text and its label, and the hub's server has rows below ``row``."""
    if isinstance(row, list) and len(row) == 2:
        return {"text": row[0], "label": row[1]}
    row = row if isinstance(row, dict) else {"row": row}
    return row["row"] if "row_idx" in row and isinstance(row.get("row"), dict) else row
