"""Everything that a command says: results on standard output, files written whole."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alora.atomic import write_text
from alora.errors import ConfigError
from alora.text import LONGEST, printable, read_whole
from alora.training.layout import INPUTS_FILE, MARK, OUTPUTS, PAGE_MARK, PREDICTED, PREDICTIONS, REPORT, RUN_FILE
from alora.verdict import Verdict

__all__ = ["report_file", "say", "say_json", "table", "write_json", "write_text"]

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_RECORDS = ("run.yaml", "inputs.json", "training.json", "evaluation.json", "identity.json", "battery.json",
            "alora.json", "adapter_config.json", PREDICTIONS, REPORT)  # fmt: skip
_VERDICTS = {"conversation", "prefix_tokens", "truncation", "verdicts"}  # score's; rows that a user added to have more
_VERDICT = {*Verdict.__dataclass_fields__, "violated"}
# The keys by which the JSON of each kind of report is known.
_REPORTS: dict[str, tuple[set[str], ...]] = {
    "evaluation": ({"schema_version", "evaluations"},),
    "fleet": ({"evaluations", "drifts", "crossfire"},),
    "certificate": ({"adapter_digest", "dtypes", "passed"}, {"certificates", "failures"}),
    "check": ({"ready", "findings"},),
    "doctor": ({"environment", "findings"},),
    "bench": ({"benchmark", "cells"},),
    "plan": ({"plans", "assumptions"},),
}


def say(text: str = "") -> None:
    """One line (or several) for the user, on standard output."""
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def report_file(output: str | Path, kind: str, *homes: Path) -> Path:
    """``output`` as the path of a report: a new file, or one that holds a report of its kind already.

    Args:
        kind: ``verdicts``, ``page`` or a key of ``_REPORTS``.
        homes: of the one adapter that the report is of: its folder, and that of its records. They are a bare
            adapter's to replace; of a run's only ``identity.json`` is.

    Raises:
        ConfigError: it is a record that a run, a bundle or an adapter keeps, or a file that is not such a report; or it
            lies where a run or a bundle has its own files alone, which could not be replaced any more.
    """
    file = Path(output)
    if "-" in (str(file), str(file.parent)):
        raise ConfigError("output=- is not a file; leave output= out where the result is to be printed alone")
    in_bundle, in_adapter = ((file.parent / name).exists() for name in ("alora.json", "adapter_config.json"))
    in_run = any((folder / "run.yaml").exists() for folder in file.absolute().parents)
    own = file.parent.resolve() in [home.resolve() for home in homes]
    wanted = own and (file.name == "identity.json" or not in_run)
    if file.name in _RECORDS and (in_bundle or ((in_run or in_adapter) and not wanted)):
        raise ConfigError(f"{file} is a record of the run, bundle or adapter that it lies in; give another output=")
    if (file.is_symlink() or file.exists()) and not _is_report(file, kind):
        raise ConfigError(
            f"{file} is there and is not a report of alora's of this kind; give another output=, or move it away"
        )
    if not (own and file.name == "identity.json") and (keeper := _keeper(file.parent.resolve())):
        raise ConfigError(f"{file} lies in {keeper}, which holds its own files alone; give another output=")
    return file


def report_file_in(output: str | None, name: str, kind: str, *homes: Path) -> Path:
    """:func:`report_file` for ``output``, or for ``name`` where that is a folder; None is the working folder."""
    path = Path.cwd() if output is None else Path(output)
    if path.suffix != ".json" and path.is_file():
        raise ConfigError(f"output={path} is a file, and no report; give a folder, or NAME.json")
    return report_file(path if path.suffix == ".json" else path / name, kind, *homes)


def _keeper(folder: Path) -> Path | None:
    """The bundle, or the part of a run, that ``folder`` is or lies in."""
    for outer in (folder, *folder.parents):
        if (outer / "alora.json").exists():
            return outer
        run = outer.parent
        if outer.name in OUTPUTS and (run / RUN_FILE).exists() and (run / INPUTS_FILE).exists():
            return outer
    return None


def _is_report(file: Path, kind: str) -> bool:
    """Whether a page or a table bears alora's mark, and whether JSON has the keys of the kind."""
    try:
        if not file.is_file():
            return False
        if (file.suffix in (".html", ".md", ".parquet")) != (kind == "page"):
            return False
        if file.suffix in (".html", ".md"):
            with file.open("rb") as stream:
                return PAGE_MARK.encode() in stream.read(100)
        if file.suffix == ".parquet":
            from pyarrow import parquet  # few commands meet an older table, and it takes a moment

            return (parquet.read_schema(file).metadata or {}).get(MARK.encode()) == PREDICTED.encode()
        return all(_is_of(kind, content) for content in _documents(file, kind == "verdicts"))
    except (OSError, ValueError, RuntimeError):  # nested too deep, or a kind of Parquet that pyarrow does not read
        return False


def _documents(file: Path, every: bool) -> Iterator[Any]:
    """The document of a JSON file, or the first that it has in lines; ``every`` one, as a user may add to any."""
    with file.open("rb") as stream:
        line = stream.readline(LONGEST)
        yield json.loads(read_whole(file) if line.strip() == b"{" else line)
        while every and line.strip() != b"{" and (line := stream.readline(LONGEST)):
            if line.strip():
                yield json.loads(line)


def _is_of(kind: str, content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    if kind == "verdicts":
        own = content.keys() - {"windows"} == _VERDICTS and isinstance(content["verdicts"], list)
        return own and all(isinstance(verdict, dict) and verdict.keys() <= _VERDICT for verdict in content["verdicts"])
    known = [name for name, forms in _REPORTS.items() if any(keys <= content.keys() for keys in forms)]
    return known[-1:] == [kind]  # a fleet's report has the keys of an evaluation, too


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; numbers flush right, floats with four digits, None as a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    right = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(headers))]

    def line(texts: Sequence[str]) -> str:
        padded = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(texts, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    say(line(headers))
    say("  ".join("-" * width for width in widths))
    for row in cells:
        say(line(row))


def say_json(value: Any) -> None:
    say(_json(value))


def write_json(file: Path, value: Any) -> None:
    """Write what :func:`say_json` prints."""
    write_text(file, f"{_json(value)}\n")


def _json(value: Any) -> str:
    """Indented JSON; strict readers refuse the escape of half of a surrogate pair, so it is text here."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return _HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")
