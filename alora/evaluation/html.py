"""Pages of HTML, and lines of Markdown, in which everything that others wrote is text."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from alora.reading import printable


def page_template(file: Path, **options: Any) -> Template:
    """The template in ``file``: values are escaped, control characters written out, a missing value is an error."""
    environment = Environment(
        loader=FileSystemLoader(file.parent), autoescape=True, undefined=StrictUndefined, finalize=shown, **options
    )
    return environment.get_template(file.name)


# What would open or close markup anywhere in a line of Markdown, or a cell of a table.
_ESCAPES = str.maketrans({sign: f"\\{sign}" for sign in r"\`*_[]|!#~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def in_markdown(text: str) -> str:
    """Text of others in a line of Markdown, in which none of it is markup."""
    return " ".join(shown(text).split()).translate(_ESCAPES)


def shown(value: Any) -> Any:
    """Text of others as a page can hold it: direction and control characters, and half characters, written out. The
    template's own (Markup) stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return printable(value).encode("utf-8", "backslashreplace").decode()
