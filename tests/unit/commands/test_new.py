"""``alora new``: a whole folder or none."""

from pathlib import Path

import pytest

from alora.commands import new
from alora.config.schema import Recipe
from alora.errors import ConfigError


def test_a_new_folder_lies_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert new.run(Recipe(name="mine")) == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        *["recipe.yaml", "policy.yaml", "README.md", "conversation.json"],
        *["train.jsonl", "validation.jsonl", "test.jsonl"],
    }
    assert "cd mine" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["run", "${x}", "a b", ".hidden", "a\nb"])
def test_a_name_that_cannot_be_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        new.run(Recipe(name=name))
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_folder_that_could_not_be_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def full(self, *_args, **_kwargs):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        new.run(Recipe(name="mine"))
    assert not list(tmp_path.iterdir())
