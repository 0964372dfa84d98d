"""Write the generated tables of docs/configuration.md and docs/commands.md from the code that they describe.

    python scripts/write_reference.py            writes them
    python scripts/write_reference.py --check    exit code 1 when they are not what the code says

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the prose around it is by hand.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from alora.cli import VERBS
from alora.config import schema
from alora.config.arguments import POSITIONAL
from alora.config.paths import configs_folder, recipes_folder
from alora.config.schema import Recipe
from alora.config.validate import CHOICES, RANGES

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("configuration.md", "commands.md")
_PART = re.compile(r"(?P<open><!-- generated: (?P<name>[\w ]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_NOT_GROUPS = ("hydra", "recipe")


def settings_part() -> str:
    """Every key of the schema: type, default, meaning and what it may be."""
    remarks = field_remarks(Path(schema.__file__).read_text(encoding="utf-8"))
    sections = ["### Top level\n\n" + _section(Recipe, "", remarks)]
    for section, prefix in _sections(Recipe, ""):
        about = (section.__doc__ or "").strip().replace("``", "`")
        sections.append(f"### {prefix}\n\n{about}\n\n{_section(section, prefix + '.', remarks)}")
    return "\n\n".join(sections)


def groups_part() -> str:
    """Every config group with its options and what their files say of themselves."""
    rows = []
    for group in sorted(path for path in configs_folder().iterdir() if path.is_dir() and path.name not in _NOT_GROUPS):
        for option in sorted(group.rglob("*.yaml")):
            rows.append([f"`{group.name}={option.relative_to(group).with_suffix('')}`", _opening(option)])
    rows += [[f"`recipe={file.stem}`", _opening(file)] for file in sorted(recipes_folder().glob("*.yaml"))]
    return _table(("on the command line", "what it is"), rows)


def verbs_part() -> str:
    """Every verb, what stands behind it without a key, and what it does."""
    rows = []
    for verb, what in VERBS.items():
        bare = f" {POSITIONAL[verb].rpartition('.')[2].upper()}" if verb in POSITIONAL else ""
        rows.append([f"`alora {verb}{bare}`", what])
    return _table(("command", "does"), rows)


PARTS: Mapping[str, Callable[[], str]] = {"settings": settings_part, "groups": groups_part, "verbs": verbs_part}


def field_remarks(source: str) -> dict[tuple[str, str], str]:
    """(class, field) → the comment behind the field's definition."""
    remarks: dict[tuple[str, str], str] = {}
    holder = name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.line
        if match := re.match(r"class (\w+)", line):
            holder, name = match[1], ""
        elif match := re.match(r"    (\w+): ", line):
            name = match[1]
        if token.type == tokenize.COMMENT and holder and name and not line.strip().startswith("#"):
            remarks[holder, name] = token.string.lstrip("# ").replace("``", "`").replace("None", "null")
    return remarks


def _sections(section: type, prefix: str) -> Iterator[tuple[type, str]]:
    hints = get_type_hints(section)
    for item in fields(section):
        if is_dataclass(kind := hints[item.name]):
            yield kind, prefix + item.name  # type: ignore[misc]
            yield from _sections(kind, f"{prefix}{item.name}.")  # type: ignore[arg-type]


def _section(section: type, prefix: str, remarks: Mapping[tuple[str, str], str]) -> str:
    hints, rows = get_type_hints(section), []
    for item in fields(section):
        if is_dataclass(hints[item.name]):
            continue
        default = item.default if item.default is not MISSING else item.default_factory()  # type: ignore[misc]
        key = prefix + item.name
        known = CHOICES.get(key)
        values = ", ".join(f"`{value}`" for value in known) if known else RANGES[key][1] if key in RANGES else ""
        rows.append(
            [
                f"`{key}`",
                _kind(hints[item.name]),
                _code(default),
                remarks.get((section.__name__, item.name), ""),
                values,
            ]
        )
    return _table(("key", "type", "default", "meaning", "values"), rows)


def _kind(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
    return text.replace("typing.", "").replace(" | ", " or ").replace("None", "null")


def _code(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return f"`{text}`" if text else "empty"


def _opening(file: Path) -> str:
    """The comment that a config file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("# ").strip())
    return " ".join(lines)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def rewritten(text: str) -> str:
    """A page with every generated part made anew.

    Raises:
        KeyError: a part that this script does not know.
    """
    return _PART.sub(lambda match: f"{match['open']}{PARTS[match['name']]()}\n{match['close']}", text)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check, stale = parser.parse_args(argv).check, []
    for name in PAGES:
        before = (DOCS / name).read_text(encoding="utf-8")
        after = rewritten(before)
        if before != after:
            stale.append(name)
            if not check:
                (DOCS / name).write_text(after, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'written'}: {', '.join(stale)}")
    if stale and check:
        print("run: python scripts/write_reference.py", file=sys.stderr)
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
