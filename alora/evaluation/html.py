"""HTML pages and lines of Markdown in which untrusted text is never markup."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from alora.text import printable


def page_template(file: Path, **options: Any) -> Template:
    """The template in ``file``: values are escaped, control characters written out, a missing value is an error."""
    environment = Environment(
        loader=FileSystemLoader(file.parent), autoescape=True, undefined=StrictUndefined, finalize=shown, **options
    )
    return environment.get_template(file.name)


# What would open or close markup anywhere in a line of Markdown, or a cell of a table.
_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in r"\`*_[]|!#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def in_markdown(text: str) -> str:
    """Untrusted text escaped for a line of Markdown."""
    return " ".join(shown(text).split()).translate(_ESCAPES)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as they are: escape those of untrusted text by :func:`in_markdown`."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def shown(value: Any) -> Any:
    """Untrusted text for a page: direction and control characters and lone surrogates are written out. The template's
    own markup stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return printable(value).encode("utf-8", "backslashreplace").decode()
