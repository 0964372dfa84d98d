"""A place with toy bases and one finished run, and the check that every bad input must pass."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from alora.cli import main
from tests.integration.bad_input.promise import Case, breaches
from tests.toy_models import toy_model
from tests.toy_recipe import toy_overrides
from tests.toy_tokenizers import toy_tokenizer

TALK = {"messages": [{"role": "user", "content": "message 7 says red"}]}


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
