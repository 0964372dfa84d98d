"""One HTML page that holds everything: tables and plots, no script, nothing to fetch."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } figure { display: inline-block; margin: .5rem; width: 44%; min-width: 20rem; }
code { background: #f3f3f3; padding: 0 .2rem; }
"""


def html_page(results: Mapping[str, Any], report: str, plots: Sequence[Path]) -> str:
    """The Markdown report as HTML, with the plots inside."""
    figures = "\n".join(_figure(path) for path in plots)
    body = [_block(block) for block in re.split(r"\n\n+", report.strip())]
    title = f"alora bench serving, {results['device']}, {results['base']['name']}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body[0]}\n{figures}\n" + "\n".join(body[1:]) + "\n</body></html>\n"
    )


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(path.stem.replace("_", " "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"></figure>'


def _block(block: str) -> str:
    """Headings, tables, lists and paragraphs: what our own report is made of."""
    lines = block.splitlines()
    heading = re.match(r"(#+) (.*)", lines[0])
    if heading:
        level = len(heading[1])
        return f"<h{level}>{_inline(heading[2])}</h{level}>"
    if lines[0].startswith("| "):
        head, *rows = [line.strip("| ").split(" | ") for line in lines if not line.startswith("| ---")]
        cells = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    if lines[0].startswith("- "):
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escaped)
