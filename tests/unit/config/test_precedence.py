"""Choices of the command line that a recipe would silence."""

from pathlib import Path

import pytest

from alora.config.precedence import silenced_choices


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "small.yaml").write_text("source: small\n")
    return [tmp_path]


def test_a_group_that_the_recipe_overrules_is_named(folders):
    (told,) = silenced_choices(["base=small"], {"base": {"source": "other"}}, folders)
    assert "base=small would have no effect" in told
    assert silenced_choices(["base=small"], {"base": {"source": "small"}}, folders) == []


def test_a_path_is_no_option_whatever_lies_beside_it(tmp_path, folders):
    (tmp_path / "run.yaml").write_text("name: another\n")
    values = {"run_dir": str(tmp_path / "run")}
    assert silenced_choices([f"run_dir={tmp_path / 'run'}"], values, folders) == []
