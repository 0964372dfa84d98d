"""What a verb prints, and where it may write a report."""

import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from alora.atomic import json_text
from alora.errors import ConfigError
from alora.text import LONGEST, printable, read_whole
from alora.training.layout import IDENTITY, INPUTS_FILE, MARK, OUTPUTS, PAGE_MARK, PREDICTED, PREDICTIONS, RUN_FILE
from alora.verdict import Verdict

_MANIFEST, _ADAPTER = "alora.json", "adapter_config.json"
_RECORDS = (RUN_FILE, INPUTS_FILE, "training.json", "evaluation.json", IDENTITY, "battery.json", _MANIFEST, _ADAPTER,
            PREDICTIONS, "report.html")  # fmt: skip
_VERDICTS = {"conversation", "prefix_tokens", "truncation", "verdicts"}  # score's; rows that a user added to have more
_VERDICT = {*Verdict.__dataclass_fields__, "violated"}
_REPORTS = (  # the keys by which the reports of the verbs are known
    {"schema_version", "evaluations"},
    {"evaluations", "drifts", "crossfire"},
    {"adapter_digest", "dtypes", "passed"},
    {"certificates", "failures"},
    {"ready", "findings"},
    {"environment", "findings"},
    {"benchmark", "cells"},
    {"plans", "assumptions"},
)


def report_file(output: str | Path, *homes: Path) -> Path:
    """``output`` as the path of a report: a new file, or one that holds a report of alora's.

    Args:
        homes: of the one adapter that the report is of: its folder, and that of its records. They are a bare
            adapter's to replace; of a run's only ``identity.json`` is.

    Raises:
        ConfigError: another file is there, or it lies where a run, a bundle or an adapter keeps its own files alone.
    """
    file = Path(output)
    if "-" in (str(file), str(file.parent)):
        raise ConfigError("output=- is not a file; leave output= out where the result is to be printed alone")
    if keeper := _keeper(file, homes):
        raise ConfigError(f"{file} lies in {keeper}, which holds its own files alone; give another output=")
    if (file.is_symlink() or file.exists()) and not _is_report(file):
        raise ConfigError(f"{file} is there and is not a report of alora's; give another output=, or move it away")
    return file


def report_file_in(output: str | None, name: str, *homes: Path) -> Path:
    """:func:`report_file` for ``output``, or for ``name`` where that is a folder; None is the working folder."""
    path = Path.cwd() if output is None else Path(output)
    if path.suffix != ".json" and path.is_file():
        raise ConfigError(f"output={path} is a file, and no report; give a folder, or NAME.json")
    return report_file(path if path.suffix == ".json" else path / name, *homes)


def _keeper(file: Path, homes: Sequence[Path]) -> Path | None:
    """The bundle, run or adapter among whose own files ``file`` would be."""
    folder = file.parent.resolve()
    outer, own = (folder, *folder.parents), folder in [home.resolve() for home in homes]
    if bundles := [one for one in outer if (one / _MANIFEST).exists()]:
        return bundles[0]
    if own and file.name == IDENTITY:
        return None
    in_run = any((one / RUN_FILE).exists() for one in outer)
    if file.name in _RECORDS and (in_run or ((folder / _ADAPTER).exists() and not own)):
        return folder
    runs = [one.parent for one in outer if one.name in OUTPUTS]
    return next((run for run in runs if (run / RUN_FILE).exists() and (run / INPUTS_FILE).exists()), None)


def _is_report(file: Path) -> bool:
    """Whether a page or a table bears alora's mark, and JSON, or each of its lines, has the keys of a report."""
    try:
        if not file.is_file():
            return False
        if file.suffix == ".parquet":
            from pyarrow import parquet  # few commands meet an older table, and it takes a moment

            return (parquet.read_schema(file).metadata or {}).get(MARK.encode()) == PREDICTED.encode()
        with file.open("rb") as stream:
            if file.suffix in (".html", ".md"):
                return PAGE_MARK.encode() in stream.read(100)
            first = stream.readline(LONGEST)
            if first.strip() == b"{":
                return _is_one(json.loads(read_whole(file)))
            return all(_is_one(json.loads(line)) for line in chain([first], filter(bytes.strip, stream)))
    except (OSError, ValueError, RuntimeError):  # nested too deep, or a kind of Parquet that pyarrow does not read
        return False


def _is_one(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    if content.keys() - {"windows"} != _VERDICTS:
        return any(keys <= content.keys() for keys in _REPORTS)
    verdicts = content["verdicts"]
    return isinstance(verdicts, list) and all(isinstance(one, dict) and one.keys() <= _VERDICT for one in verdicts)


def say(text: str = "") -> None:
    """One line (or several) for the user, on standard output."""
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    say(json_text(value))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; numbers flush right, floats with four digits, None as a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    columns = zip(*rows, strict=True) if rows else [("",)] * len(headers)
    right = [all(isinstance(v, int | float | None) and not isinstance(v, bool) for v in column) for column in columns]
    for line in (headers, ["-" * width for width in widths], *cells):
        padded = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True))
        say("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")
