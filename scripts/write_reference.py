"""Write the generated tables of docs/configuration.md and docs/commands.md from the code that they describe.

    python scripts/write_reference.py            writes them
    python scripts/write_reference.py --check    exit code 1 when they are not what the code says

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the prose around it is by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args

from alora.cli import VERBS
from alora.config.arguments import POSITIONAL
from alora.config.paths import configs_folder, recipes_folder
from alora.config.schema import Recipe
from alora.config.setting import LARGEST, Limits, settings_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("configuration.md", "commands.md")
_PART = re.compile(r"(?P<open><!-- generated: (?P<name>[\w ]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
BY_HELP = ("bench", "compare", "plan")  # of the lab's verbs: their --help lists them
_NOT_GROUPS = ("hydra", "recipe", *BY_HELP)


def settings_part() -> str:
    """Every key of the schema that the page lists: default, meaning and what it may be."""
    parts = ["### Top level\n\n" + _section("", Recipe)]
    for key, kind, _ in settings_of(Recipe):
        if is_dataclass(kind) and key.partition(".")[0] not in BY_HELP:
            about = " ".join((kind.__doc__ or "").split()).replace("``", "`")
            parts.append(f"### {key}\n\n{about}\n\n{_section(f'{key}.', kind)}")  # type: ignore[arg-type]
    return "\n\n".join(parts)


def groups_part() -> str:
    """Every config group with its options and what their files say of themselves."""
    texts: dict[tuple[str, str], list[str]] = {}  # options of a group that say the same share a row
    for group in sorted(path for path in configs_folder().iterdir() if path.is_dir() and path.name not in _NOT_GROUPS):
        for option in sorted(group.rglob("*.yaml")):
            name = f"`{group.name}={option.relative_to(group).with_suffix('')}`"
            texts.setdefault((group.name, _opening(option)), []).append(name)
    rows = [[", ".join(names), what] for (_, what), names in texts.items()]
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


def _section(prefix: str, section: type) -> str:
    defaults, rows = section(), []
    for key, kind, limits in settings_of(section):
        if "." in key or is_dataclass(kind):
            continue
        default = getattr(defaults, key)
        about = filter(None, (limits.meaning, *_values(kind, default, limits)))
        rows.append([f"`{prefix}{key}={_plain(default)}`", "; ".join(about)])
    return _table(("setting", "meaning"), rows)


def _values(kind: Any, default: Any, limits: Limits) -> Iterator[str]:
    """What a setting may be, beyond what its default shows; what a file may give."""
    if limits.choices and limits.choices != tuple(default or ()):
        yield ", ".join(f"`{choice}`" for choice in limits.choices)
    elif limits.form is not None:
        yield limits.words
    else:
        yield _within(kind, default, limits)
    if limits.in_files is not None:
        yield f"in a file only {', '.join(f'`{_plain(value)}`' for value in limits.in_files)}"


def _within(kind: Any, default: Any, limits: Limits) -> str:
    """A number's range, such as ``≥ 1``, after its type where the default is null."""
    bounds = []
    if limits.least > -math.inf and limits.most < LARGEST:
        bounds.append(f"{limits.least:g} to {limits.most:.10g}")
    else:
        bounds += [f"≥ {limits.least:g}"] if limits.least > -math.inf else []
        bounds += [f"> {limits.above:g}"] if limits.above > -math.inf else []
        bounds += [f"< {limits.below:g}"] if limits.below < math.inf else []
        bounds += [f"≤ {limits.most:.10g}"] if limits.most < LARGEST else []
    if not bounds:
        return ""
    name = "each" if isinstance(default, list) else get_args(kind)[0].__name__ if default is None else ""
    return f"{name} {', '.join(bounds)}".strip() + "".join(f", or {number}" for number in limits.also)


def _plain(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


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
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


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
