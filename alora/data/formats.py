"""Text files of rows: JSON lines, a JSON array, CSV and TSV, also packed by gzip. One row is in memory at a time."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alora.errors import DataError
from alora.findings import Findings

SEPARATORS = (",", ";", "\t")  # of a table; its first line shows which
CHUNK = 2**20
CUT_SHORT = "; the file is read up to here, as an array of rows"  # ends the one problem that hides further rows
_GZIP, UTF8_BOM = b"\x1f\x8b", b"\xef\xbb\xbf"
_FOREIGN = {
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"PK\x03\x04": "a spreadsheet or a zip file; save the table as CSV in UTF-8, or unpack the file",
    b"PAR1": "a Parquet file; name it .parquet",
}
Stream = io.BufferedReader | gzip.GzipFile
_BETWEEN = re.compile(r"[\s,]*")
_CLASS_NUMBER = re.compile(r"\s*(-?[0-9]{1,99})(?:\.0*)?\s*")


class Row(NamedTuple):
    """One row as it was read: where (``train.jsonl:17``) and its value."""

    where: str
    value: Any


def read_text(path: Path, name: str, table: bool, findings: Findings) -> Iterator[Row]:
    """The rows of a ``table`` (CSV, TSV) or of JSON; ``name`` is the file's in ``Row.where``, followed by
    the number of the line or, in a JSON array, of the row."""
    try:
        with _open(path) as stream:
            start = stream.peek(CHUNK)[:CHUNK]
            for magic, what in _FOREIGN.items():
                if start.startswith(magic):
                    raise DataError(f"{path} is {what}")
            if table:
                yield from _read_table(stream, name, start, findings)
            elif start.removeprefix(UTF8_BOM).lstrip().startswith(b"[") and not _are_lines(stream):
                with io.TextIOWrapper(stream, "utf-8-sig") as text:  # type: ignore[arg-type]
                    yield from _read_array(text, name, findings)
            else:
                yield from _read_lines(stream, name, findings)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8 (CSV UTF-8 in a spreadsheet)") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: its gzip data is damaged ({error}); get the file again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; check the file and its permissions") from error


def _are_lines(stream: Stream) -> bool:
    """Whether a file that begins with a bracket holds JSON lines, and not an array: a line of messages is followed by
    another list; a lone bracket is followed by an object without a comma, and nothing closes it there."""
    first, second, third = (stream.readline().removeprefix(UTF8_BOM) for _ in range(3))
    stream.seek(0)
    try:
        if first.strip() != b"[":
            message = next(iter(json.loads(first)), None) if second.lstrip().startswith(b"[") else None
            return isinstance(message, dict) and not message.keys().isdisjoint(("role", "from"))
        return isinstance(json.loads(second), dict) and not third.lstrip().startswith((b"]", b","))
    except ValueError:
        return False


def _open(path: Path) -> Stream:
    with path.open("rb") as stream:
        packed = stream.read(2) == _GZIP
    return gzip.GzipFile(path) if packed else path.open("rb")


def parse_json(text: str) -> Any:
    """JSON in which no key is there twice; ValueError with a message that completes "not JSON: ..."."""
    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        cut = ", the text ends too early" if error.pos >= len(text.rstrip()) else ""
        raise ValueError(f"{error.msg} at column {error.colno}{cut}") from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's keys and values; ValueError for a key that is there twice, which two readers may read differently."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shortened(key)} is there twice")
        result[key] = value
    return result


def without_nulls(value: Any, in_list: bool = False) -> Any:
    """A table's cell without what the table adds: each object in a list has the keys of all there, the others' null."""
    if isinstance(value, list):
        return [without_nulls(item, True) if isinstance(item, list | dict) else item for item in value]
    if in_list and isinstance(value, dict):
        return {key: without_nulls(item, True) for key, item in value.items() if item is not None}
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
        if written is None:
            continue
        number = int(written[1])
        name = names[number] if 0 <= number < len(names) else None
        others = {str(cell).strip(), str(number)} - {name} if name is None or isinstance(cell, str) else ()
        if any(other in names for other in others):
            raise DataError(
                f"{row.where}: {column} is {shortened(cell)}, which may be the number of a class or the name of "
                "another; rename the classes"
            )
        if name is not None:
            named[column] = name
    return row._replace(value=row.value | named)


def shortened(value: Any) -> str:
    """``repr`` of a user's value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _read_lines(stream: Stream, name: str, findings: Findings) -> Iterator[Row]:
    for number, line in enumerate(stream, 1):
        where = f"{name}:{number}"
        line = line.removeprefix(UTF8_BOM) if number == 1 else line
        if b"\x00" in line:
            findings.add("NUL_BYTES", where, "holds NUL bytes, so it is not text; give JSONL in UTF-8")
            continue
        if number == 1 and line.strip() == b"{" and stream.peek(1).lstrip().startswith(b'"'):
            raise DataError(f"{name} spreads an object over several lines; write one per line (jq -c), or an array")
        if line.strip():
            yield from _parse_line(where, line, findings)


def _parse_line(where: str, line: bytes, findings: Findings) -> Iterator[Row]:
    try:
        yield Row(where, parse_json(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        text = f"not UTF-8: {error.reason} at byte {error.start} of the line; save the file as UTF-8"
        findings.add("NOT_UTF8", where, text)
    except ValueError as error:
        findings.add("NOT_JSON", where, f"not JSON: {error}; each line is one object")


def _read_array(stream: io.TextIOWrapper, name: str, findings: Findings) -> Iterator[Row]:
    """The items of an array, decoded one by one from a buffer that grows only while an item is not complete."""
    decoder = json.JSONDecoder(object_pairs_hook=unique)
    buffer, number, size = stream.read(CHUNK).lstrip()[1:], 1, CHUNK
    at, ended = 0, False
    while True:
        at = at if (blank := _BETWEEN.match(buffer, at)) is None else blank.end()
        if buffer[at : at + 1] == "]":
            rest = buffer[at + 1 :]
            while rest.isspace() or not rest:
                if not (rest := stream.read(CHUNK)):
                    return
            findings.add("NOT_JSON", f"{name}:{number}", f"not JSON: text behind the array's end{CUT_SHORT}")
            return
        try:
            value, at = decoder.raw_decode(buffer, at)
        except ValueError as error:
            if ended or not isinstance(error, json.JSONDecodeError):
                text = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                findings.add("NOT_JSON", f"{name}:{number}", f"not JSON: {text}{CUT_SHORT}")
                return
            more = stream.read(size)
            buffer, at, size, ended = buffer[at:] + more, 0, 2 * size, not more
            continue
        yield Row(f"{name}:{number}", value)
        number, size = number + 1, CHUNK


def _read_table(stream: Stream, name: str, start: bytes, findings: Findings) -> Iterator[Row]:
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
            findings.add("NOT_CSV", where, f"not CSV: {error}; put the text in quotes, and double the quotes in it")
            continue
        if cells is None:
            return
        if any(cells[len(header) :]) or 0 < len(cells) < len(header):
            text = f"{len(cells)} cells and {len(header)} columns; put texts with {separator!r} or quotes in quotes"
            findings.add("CELLS", where, text)
        elif "\0" in "".join(cells):
            findings.add("NUL_BYTES", where, "holds NUL bytes, so it is not text; give CSV in UTF-8")
        elif any(cells):
            if separator == "\t" and any("\t" in cell and "\n" in cell for cell in cells):
                findings.notes[
                    "a cell in quotes has tabs and line ends: it may be several rows, with quotes in them"
                ] += 1
            yield Row(where, {title: cell or None for title, cell in zip(header, cells, strict=False) if title})
        elif cells:
            findings.notes["a line of empty cells is left out"] += 1


def _table_lines(stream: Stream) -> Iterator[str]:
    with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:  # type: ignore[arg-type]
        yield from text
