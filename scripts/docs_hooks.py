"""What the site needs beyond plain Markdown; the pages themselves read well without it.

- ``$$ ... $$`` becomes a drawing, so that a formula needs no script from elsewhere. GitHub draws it by itself.
- A link to a file outside docs/ (``../benchmarks/results/x.json``) becomes a file of the site.
- The comments that :mod:`run_docs` reads become visible.
- External links must be whole ``https`` addresses; nothing is fetched.
"""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks.alora")

SOURCES = "repository"  # folder of the site that holds linked files of the repository
_FORMULA = re.compile(r"^\$\$\n(?P<tex>.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
_OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#\s]+)")
_ADDRESS = re.compile(r"\]\((?P<address>[a-z]+:[^)\s]*)\)|<(?P<bare>https?:[^>\s]*)>")
_MARK = re.compile(r"^<!-- *(?P<name>not run|exit code|run in) *: *(?P<value>.+?) *-->$", re.MULTILINE)
_WORDS = {
    "not run": "Not run by the documentation's own test: {}.",
    "exit code": "Ends with exit code {}.",
    "run in": "In {} of the repository.",
}


def on_files(files: Files, *, config: Any) -> Files:
    """Take in the files outside docs/ that a page links to."""
    root = Path(config["docs_dir"]).parent
    for page in list(files.documentation_pages()):
        for path in _OUTSIDE.findall(page.content_string):
            uri = f"{SOURCES}/{path}"
            if not (root / path).is_file():
                log.warning("%s links to ../%s, which is not a file of the repository", page.src_uri, path)
            elif files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Rewrite one page."""
    for match in _ADDRESS.finditer(markdown):
        check_address(match["address"] or match["bare"], page.file.src_uri)
    markdown = _OUTSIDE.sub(rf"]({SOURCES}/\g<path>", markdown)
    markdown = _MARK.sub(_visible, markdown)
    return _FORMULA.sub(lambda match: formula(match["tex"]), markdown)


def check_address(address: str, where: str) -> None:
    """Warn (an error under ``strict``) of an external link that is not a whole https address."""
    parts = urlparse(address)
    if parts.scheme != "https" or "." not in parts.netloc or " " in address:
        log.warning("%s: %s is not a whole https address", where, address)


def formula(tex: str) -> str:
    """A displayed formula as inline SVG, by matplotlib's own TeX reader; each line of ``tex`` is one formula."""
    from matplotlib import rc_context
    from matplotlib.mathtext import math_to_image

    drawings = []
    for line in filter(None, (line.strip().removesuffix(r"\\").strip() for line in tex.splitlines())):
        drawing = io.StringIO()
        with rc_context({"mathtext.fontset": "cm", "svg.fonttype": "path", "svg.hashsalt": line}):
            math_to_image(f"${line}$", drawing, format="svg", dpi=110)
        svg = drawing.getvalue()
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        drawings.append(f'<div class="alora-formula" role="math" aria-label="{_escaped(line)}">{_one_line(svg)}</div>')
    return "\n".join(drawings)


def _visible(match: re.Match[str]) -> str:
    return f'<p class="alora-mark">{_escaped(_WORDS[match["name"]].format(match["value"]))}</p>\n'


def _one_line(svg: str) -> str:
    return re.sub(r"\s*\n\s*", " ", svg)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
