"""Run every command of the documentation, as a reader would paste it: page by page, in order, in a scratch folder.

    python scripts/run_docs.py                       the README and every page below docs/
    python scripts/run_docs.py docs/quickstart.md    one page

What a page's fenced blocks mean:

- ``bash`` is run; the working folder and exported variables carry over to the page's next block.
- ``python`` is run as a script in that folder.
- any language with ``title="NAME"`` is a file that the reader saves: it is written there, and not run.
- everything else is shown only, and must not hold a command.

A comment right above a block changes that: ``<!-- not run: REASON -->`` (every ``alora`` command in it is still
composed, so its keys exist), ``<!-- exit code: N -->``, and ``<!-- run in: a clone -->`` (a copy of the tracked files).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 900
SETUP_INPUTS = ("scripts/requirements-cpu.txt", "pyproject.toml", "scripts/setup.sh")  # of setup.sh's own stamp
COMMANDS = (
    "alora",
    "make",
    "pip",
    "python",
    "pytest",
    "vllm",
    "mkdocs",
    "curl",
    "source",
)  # what opens a line that is a command
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="(?P<title>[^"]+)"')
_MARK = re.compile(r"^ *<!-- *(?P<name>not run|exit code|run in) *: *(?P<value>.+?) *-->$")
_RUN = ("bash", "python")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. ``line`` is that of its opening fence; ``marks`` are the comments right above."""

    page: Path
    line: int
    language: str
    text: str
    title: str | None = None
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Where it is and how it begins."""
        first = next((line.strip() for line in self.text.splitlines() if line.strip()), "")
        return f"{_short(self.page)}:{self.line}: {first}"

    @property
    def runs(self) -> bool:
        """Whether it is executed."""
        return self.language in _RUN and self.title is None and "not run" not in self.marks


class PageError(Exception):
    """A page cannot be run, or one of its commands did not do what the page says."""


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order.

    Raises:
        PageError: a block without a language, without an end, or with a command that would never be run.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks, index = [], 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        if opening is None:
            index += 1
            continue
        end = index + 1
        while end < len(lines) and lines[end].strip() != opening["ticks"]:
            end += 1
        if end == len(lines):
            raise PageError(f"{_short(page)}:{index + 1}: the block has no end")
        indent = len(opening["indent"])
        text = "\n".join(line[indent:] for line in lines[index + 1 : end]) + "\n"
        title = _TITLE.search(opening["rest"])
        marks = dict(_marks_above(lines[:index]))
        blocks.append(Block(page, index + 1, opening["language"], text, title and title["title"], marks))
        index = end + 1
    problems = [problem for block in blocks for problem in _problems(block)]
    if problems:
        raise PageError("\n".join(problems))
    return blocks


def _marks_above(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in reversed(lines):
        mark = _MARK.match(line)
        if mark is None:
            return
        yield mark["name"], mark["value"]


def _problems(block: Block) -> Iterator[str]:
    if not block.language:
        yield f"{block.name}: the block names no language; write ```bash, ```text or another one"
    if block.language in _RUN or block.title is not None:
        return
    for line in block.text.splitlines():
        word = line.strip().removeprefix("$ ").split(" ")[0]
        if word in COMMANDS and " " in line.strip():
            kind = block.language or "bare"
            yield f"{block.name}: {line.strip()!r} looks like a command, but a {kind} block is never run"


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="docs-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Shell:
    """A reader's shell for one page: a scratch folder, and what one block leaves for the next."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self.here = folder / "page"
        self.variables: dict[str, str] = {}
        self._groups: list[int] = []
        for place in (self._state, self.here):
            place.mkdir()
        (self._state / "exports").write_text("")

    def run(self, text: str, language: str = "bash") -> tuple[int, str]:
        """Exit code and output of a piece of shell or Python."""
        script, log = self._state / f"block.{language}", self._state / "log"
        ending = (
            f"\nexport -p >{shlex.quote(str(self._state / 'exports'))}; pwd >{shlex.quote(str(self._state / 'cwd'))}"
        )
        script.write_text(f"{text}{ending}\n" if language == "bash" else text, encoding="utf-8")
        source = f"source {shlex.quote(str(self._state / 'exports'))}"
        if language == "bash":
            command = ["bash", "-c", f"{source}; set -eo pipefail; source {shlex.quote(str(script))}"]
        else:
            command = ["bash", "-c", f"{source}; exec python {shlex.quote(str(script))}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.here, env=_environment() | self.variables, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._groups.append(process.pid)
            try:
                code = process.wait(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                code = 124
        said = log.read_text(encoding="utf-8", errors="replace")
        if code == 0 and language == "bash":
            self.here = Path((self._state / "cwd").read_text().strip())
        return code, said

    def enter_clone(self) -> None:
        """Go to a copy of the repository's tracked files, where `make setup` has been run already."""
        clone = self._state.parent / "clone"
        if not clone.exists():
            clone.mkdir()
            self.variables = stand_in_for_setup(clone / ".venv")
            tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
            for name in filter(None, tracked.stdout.split("\0")):
                if (ROOT / name).exists():
                    (clone / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
        self.here = clone

    def close(self) -> None:
        """End what the blocks left running."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def _environment() -> dict[str, str]:
    """The reader's environment with this interpreter's commands first, and no hub."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return inherited | {"PATH": path, "HF_HUB_OFFLINE": "1"}


def stand_in_for_setup(venv: Path) -> dict[str, str]:
    """The environment at hand as the one that `make setup` would make: its stamp is current, so nothing is installed.

    Returns:
        The variables that tell make so.
    """
    venv.mkdir()
    for name in ("bin", "clients", "lib", "pyvenv.cfg"):
        (venv / name).symlink_to(Path(sys.prefix) / name)
    content = b"".join((ROOT / name).read_bytes() for name in SETUP_INPUTS)
    (venv / ".alora-setup").write_text(f"cpu {hashlib.sha256(content).hexdigest()}\n")
    return {"ALORA_TORCH": "cpu"}


def run_page(page: Path) -> list[Block]:
    """Run a page's blocks in order; returns those that were not run.

    Raises:
        PageError: a block ended with another exit code than the page says.
    """
    blocks = read_blocks(page)
    with _scratch() as folder:
        shell = Shell(folder)
        try:
            for block in blocks:
                _run_block(shell, block)
        finally:
            shell.close()
    return [block for block in blocks if "not run" in block.marks]


def _run_block(shell: Shell, block: Block) -> None:
    if block.title is not None:
        (shell.here / block.title).parent.mkdir(parents=True, exist_ok=True)
        (shell.here / block.title).write_text(block.text, encoding="utf-8")
    elif block.runs:
        if "run in" in block.marks:
            shell.enter_clone()
        expected = int(block.marks.get("exit code", "0"))
        code, said = shell.run(block.text, block.language)
        if code != expected:
            tail = "\n".join(said.replace("\r", "\n").splitlines()[-40:])
            raise PageError(f"{block.name}: exit code {code}, the page says {expected}\n{block.text}\n{tail}")
    elif block.language == "bash":
        for command in alora_commands(block.text):
            code, said = shell.run(shlex.join([*command, "--cfg", "job"]))
            if code != 0:
                raise PageError(f"{block.name}: {shlex.join(command)} cannot be composed\n{said}")


def alora_commands(text: str) -> list[list[str]]:
    """The ``alora`` commands of a shell block that compose a config, as argument lists."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        with contextlib.suppress(ValueError):
            words = shlex.split(line, comments=True)
            if len(words) > 1 and words[0] == "alora" and not words[1].startswith("-"):
                found.append([word for word in words if word not in ("-m", "--multirun")])
    return found


def _short(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pages that are named, or all; exit code 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, help="default: README.md, CONTRIBUTING.md and docs/*.md")
    given = [page.resolve() for page in parser.parse_args(argv).pages]
    pages = given or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the `finally` that ends what blocks left running
    failures, left_out = [], []
    for page in pages:
        started = time.monotonic()
        try:
            left_out += run_page(page)
            outcome = "ok"
        except PageError as error:
            failures.append(str(error))
            outcome = "FAILED"
        print(f"{_short(page):32} {outcome:6} {time.monotonic() - started:5.0f} s", flush=True)
    print("\nnot run:" if left_out else "\nevery block was run")
    for block in left_out:
        print(f"  {block.name}\n      {block.marks['not run']}")
    for failure in failures:
        print(f"\n{failure}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
