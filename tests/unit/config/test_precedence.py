"""Choices of the command line that a recipe would silence."""

from pathlib import Path

from alora.config.precedence import silenced_choices


def folders(tmp_path: Path) -> list[Path]:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "small.yaml").write_text("source: small\n")
    return [tmp_path]


def test_a_group_that_the_recipe_overrules_is_named(tmp_path):
    (told,) = silenced_choices(["base=small"], {"base": {"source": "other"}}, folders(tmp_path))
    assert "base=small would have no effect" in told
    assert silenced_choices(["base=small"], {"base": {"source": "small"}}, folders(tmp_path)) == []


def test_a_path_is_no_option_whatever_lies_beside_it(tmp_path):
    (tmp_path / "run.yaml").write_text("name: another\n")
    values = {"run_dir": str(tmp_path / "run")}
    assert silenced_choices([f"run_dir={tmp_path / 'run'}"], values, folders(tmp_path)) == []
