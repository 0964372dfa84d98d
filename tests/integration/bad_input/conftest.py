"""A place with toy bases and one finished run, and the check that every bad input must pass."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from alora.cli import main
from tests.toy_models import toy_model
from tests.toy_recipe import toy_overrides
from tests.toy_tokenizers import toy_tokenizer

TALK = {"messages": [{"role": "user", "content": "message 7 says red"}]}


@dataclass(frozen=True)
class Case:
    """One command with its bad input.

    ``command`` may name ``{here}`` (an empty folder of the test's own, where ``files`` are put first) and ``{place}``.
    After ``train`` and ``check`` the toy recipe follows from the fixture; the command's own settings win. ``words``
    must all be in the message: the place and the remedy.
    """

    command: str
    words: Sequence[str]
    exit_code: int = 2
    files: Mapping[str, bytes | str] = field(default_factory=dict)


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
    """Run a case and check that it gives one clear message, the right exit code, and leaves nothing behind."""

    def check(case: Case) -> None:
        for name, content in case.files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content.encode() if isinstance(content, str) else content)
        before = [tree(folder) for folder in (place, here)]
        capsys.readouterr()
        exit_code = main(arguments(case.command, place, here))
        check_refusal(case, exit_code, *capsys.readouterr())
        assert [tree(folder) for folder in (place, here)] == before

    return check


def arguments(command: str, place: Path, here: Path) -> list[str]:
    """The command line of a case."""
    verb, *rest = command.format(place=place, here=here).split()
    recipe = [*json.loads((place / "overrides.json").read_text()), f"run_dir={here / 'run'}"]
    return [verb, *(recipe if verb in ("train", "check") else []), *rest]


def check_refusal(case: Case, exit_code: int, output: str, errors: str) -> None:
    """One clear message with every word of the case, on standard error alone."""
    assert exit_code == case.exit_code, output + errors
    missing = [word for word in case.words if word not in errors]
    assert not missing, f"{missing} not in: {errors}"
    for mark in ("Traceback", "internal error", "Error(", "Exception ignored"):
        assert mark not in errors, errors
    assert len(errors) < 2000, "nobody reads that"
    assert output == ""


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder: name → size and time of the last change. Locks do not count."""
    found = {}
    for home, folders, files in os.walk(folder):
        for name in (*folders, *(file for file in files if file != ".lock")):
            path = Path(home) / name
            found[str(path)] = (0, 0) if path.is_dir() else (path.lstat().st_size, path.lstat().st_mtime_ns)
    return found
