"""A place with toy bases and one finished run, and the one check of what every command promises for bad input."""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alora.cli import main
from tests.toy_models import toy_model
from tests.toy_recipe import toy_overrides
from tests.toy_tokenizers import toy_tokenizer

ROOT = Path(__file__).resolve().parents[3]
TALK = {"messages": [{"role": "user", "content": "message 7 says red"}]}
LONGEST, MOST_LINES = 2000, 25  # of a message that somebody reads
ANOTHER = "the message is not the one of messages.json: "
FOREIGN = ("Traceback", "internal error", "Error(", "Exception ignored", "\x1b")  # of Python and of strangers
Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One command with its bad input.

    ``command`` may name ``{here}`` (an empty folder of the test's own) and ``{place}`` (see the fixture). Into
    ``{here}`` go first ``files``, and a copy of ``{place}/copied``, which ``damage`` then spoils. After ``train`` and
    ``check`` the toy recipe follows; the command's own settings win. ``result`` holds what must be on standard output,
    which is empty otherwise. ``messages.json`` has the message of each case of the table; elsewhere it has ``words``.
    """

    command: str
    exit_code: int = 2
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    copied: str | None = None
    damage: Damage | None = None
    result: Sequence[str] = ()
    words: Sequence[str] = ()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base/``, ``other/`` (weights), ``wide/`` (shape), ``run/`` (finished), rows, ``policy.yaml``, ``talk.json``."""
    place = tmp_path_factory.mktemp("place")
    overrides = toy_overrides(place, place / "run")
    (place / "overrides.json").write_text(json.dumps(overrides))
    (place / "talk.json").write_text(json.dumps(TALK))
    for name, options in (("other", {"seed": 1}), ("wide", {"heads": 8})):
        shutil.copytree(place / "base", place / name)
        toy_model("qwen3", vocab=len(toy_tokenizer("qwen3")), **options).save_pretrained(place / name)
    assert main(["train", *overrides]) == 0
    return place


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; nothing lies in it."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("ALORA_DEBUG", raising=False)
    return here


@pytest.fixture
def refused(place: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Case], None]:
    """Run a case and check that it keeps every promise."""

    def check(case: Case) -> None:
        assert breaches(case, place, here, capsys) == []

    return check


def breaches(
    case: Case,
    place: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[list[str]], int | None] = main,
    message: str | None = None,
) -> list[str]:
    """Every promise that ``command`` breaks on this case; ``message`` is what it must print."""
    for name, content in case.files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if case.copied is not None:
        copy(place / case.copied, here / Path(case.copied).name)
    if case.damage is not None:
        case.damage(here if case.copied is None else here / Path(case.copied).name)
    before = [tree(folder) for folder in (place, here)]
    capsys.readouterr()
    exit_code = command(arguments(case.command, place, here))
    output, errors = capsys.readouterr()
    told = breaches_of_words(case, exit_code, output, errors)
    if message is not None and (heard := anywhere(output + errors, place, here)) != message:
        told.append(f"{ANOTHER}{heard}")
    after = [tree(folder) for folder in (place, here)]
    changed = [name for was, now in zip(before, after, strict=True) for name in differences(was, now)]
    return [*told, *(f"{name} was changed, made or removed" for name in changed)]


def anywhere(text: str, place: Path, here: Path) -> str:
    """A message without what differs from run to run: folders and digests."""
    for name, folder in (("here", here), ("place", place), ("alora", ROOT)):
        text = text.replace(str(folder), f"{{{name}}}")
    text = re.sub(r"(?m)^.*\d+%\|.*\r?|\(char \d+\)|line \d+ column \d+", "", text)  # bars, and places in JSON
    return re.sub(r"\b[0-9a-f]{12,64}\b|(?<=run-)[0-9a-f]{6}\b", "{digest}", text)


def breaches_of_words(case: Case, exit_code: int | None, output: str, errors: str) -> list[str]:
    """The promises about exit code, standard output and standard error."""
    found = [] if exit_code == case.exit_code else [f"exit code {exit_code}, not {case.exit_code}: {output}{errors}"]
    found += [f"{word!r} is not in: {errors}" for word in case.words if word not in errors]
    found += [f"{word!r} is not in: {output}" for word in case.result if word not in output]
    found += [f"{mark!r} is in: {output}{errors}" for mark in FOREIGN if mark in output + errors]
    if len(errors) > LONGEST or errors.count("\n") > MOST_LINES:
        found.append(f"{len(errors)} characters in {errors.count(chr(10))} lines: nobody reads that: {errors[:3000]}")
    if not case.result and output:
        found.append(f"standard output is not for errors: {output}")
    if case.exit_code != 0 and not errors and not case.result:
        found.append("it fails without a word")
    return found


def check_refusal(case: Case, exit_code: int | None, output: str, errors: str) -> None:
    """One clear message with every word of the case."""
    assert breaches_of_words(case, exit_code, output, errors) == []


def arguments(command: str, place: Path, here: Path) -> list[str]:
    """The command line of a case."""
    verb, *rest = command.format(place=place, here=here).split()
    recipe = [*json.loads((place / "overrides.json").read_text()), f"run_dir={here / 'run'}"]
    return [verb, *(recipe if verb in ("train", "check") else []), *rest]


def copy(source: Path, target: Path) -> Path:
    """A folder's copy without its lock; its files may be spoiled one by one."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_symlink():
            (target / path.name).symlink_to(path.readlink())
        elif path.is_dir():
            copy(path, target / path.name)
        elif path.name != ".lock":
            (target / path.name).write_bytes(path.read_bytes())
    return target


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Everything below a folder: name → kind with permissions, and digest of its content. Locks do not count."""
    found = {}
    for home, folders, files in os.walk(folder):
        for name in (*folders, *(file for file in files if file != ".lock")):
            path = Path(home) / name
            mode = path.lstat().st_mode
            content = b""
            if stat.S_ISREG(mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(mode):
                content = os.fsencode(path.readlink())
            found[str(path)] = (mode, hashlib.sha256(content).hexdigest())
    return found


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def edit(file: str, change: Callable[[dict], object]) -> Damage:
    """Change a JSON file in place."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return damage


def cut(file: str, share: float = 0.5) -> Damage:
    """Leave a file's first ``share``."""

    def damage(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: int(share * len(content))])

    return damage


def write(file: str, text: str) -> Damage:
    return lambda folder: (folder / file).write_text(text)


def remove(file: str) -> Damage:
    return lambda folder: (folder / file).unlink()
