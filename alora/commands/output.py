"""Everything that a command says: results on standard output, remarks on standard error, files written whole."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alora.atomic import json_text, write_json, write_text
from alora.errors import ConfigError

__all__ = ["note", "report_file", "say", "say_json", "table", "write_json", "write_text"]

_RECORDS = ("run.yaml", "inputs.json", "training.json", "evaluation.json", "identity.json", "battery.json",
            "alora.json", "adapter_config.json")  # fmt: skip


def say(text: str = "") -> None:
    """One line (or several) for the user, on standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark beside the result, on standard error: it never mixes with what a pipe reads."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report_file(output: str | Path) -> Path:
    """``output`` as a place for a report.

    Raises:
        ConfigError: it is one of the records that a run keeps, which its bundles are made from.
    """
    file = Path(output)
    if file.name in _RECORDS and any((folder / "run.yaml").exists() for folder in file.absolute().parents):
        raise ConfigError(f"{file} is the run's own record, which its bundle is made from; give another output=")
    return file


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
    """Print ``value`` as one JSON document."""
    say(json_text(value))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)
