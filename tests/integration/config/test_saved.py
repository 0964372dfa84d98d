"""run.yaml: written, read back, and refused when it is not what it should be."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import Recipe
from alora.errors import ConfigError, RunError

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=40) | st.text(alphabet="a${}\\ :#'\"", max_size=12)


def environment_above(path):
    """What stands above the settings, in comments."""
    lines = path.read_bytes().decode().splitlines()
    return yaml.safe_load("\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   ")))


@settings(max_examples=25, deadline=None)
@given(rule=texts, word=texts, command=texts, rate=st.floats(1e-9, 1.0), steps=st.integers(-1, 10**9))
def test_every_value_comes_back(tmp_path_factory, rule, word, command, rate, steps):
    path = tmp_path_factory.mktemp("run") / "run.yaml"
    recipe = Recipe()
    recipe.policy.rule, recipe.policy.labels = rule, {"bad": word, "good": "No"}
    recipe.training.learning_rate, recipe.training.max_steps = rate, steps
    save_recipe(recipe, path, {"command": command, "torch": "2.13.0"})
    assert read_saved_recipe(path) == recipe
    assert environment_above(path) == {"command": command, "torch": "2.13.0"}


@pytest.mark.parametrize(
    "text",
    [
        "\x85",
        "a\u2028b\u2029",
        "\0",
        "\ufeff",
        "${",
        "\\${x}",
        "\\\\${",
        "a\n ${\n",
        "Yes",
        "#",
        "0E0",
        "1e5",
        "0o7",
        "-1e3",
        "1_0",
        "2026-11-22",
    ],
)
def test_odd_text_comes_back(text, tmp_path):
    recipe = Recipe()
    recipe.policy.rule = text
    save_recipe(recipe, tmp_path / "run.yaml", {"command": text})
    assert read_saved_recipe(tmp_path / "run.yaml") == recipe
    assert environment_above(tmp_path / "run.yaml") == {"command": text}


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", RunError, "not a YAML mapping"),
        ("a: [", RunError, r"run.yaml:\d+: not YAML"),
        ("a: \0", RunError, "not YAML"),
        ("naem: x", ConfigError, "did you mean 'name'"),
        ("training: {epochs: soon}", ConfigError, "training.epochs is .soon.; it must be a number"),
    ],
)
def test_a_damaged_file_is_told(text, error, words, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(error, match=words):
        read_saved_recipe(tmp_path / "run.yaml")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(RunError, match=r"run\.yaml"):
        read_saved_recipe(tmp_path / "run.yaml")


def test_settings_without_environment(tmp_path):
    save_recipe(Recipe(), tmp_path / "run.yaml", {})
    assert environment_above(tmp_path / "run.yaml") == {}
