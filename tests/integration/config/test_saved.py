"""run.yaml: written, read back, and refused when it is not what it should be."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import Recipe
from alora.errors import ConfigError, RunError
from tests.integration.config.test_compose import recipe_of

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=40) | st.text(alphabet="a${}\\ :#'\"", max_size=12)


def environment_above(path):
    """What stands above the settings, in comments."""
    lines = path.read_bytes().decode().splitlines()
    return yaml.safe_load("\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   ")))


def odd(test):
    """The test with each of these texts as well."""
    for text in ("a\u2028b\u2029", "\0", "\\${x}", "Yes", "0E0", "1e5", "2026-11-22"):
        test = example(rule=text, word=text, command=text, rate=1.0, steps=1)(test)
    return test


@odd
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


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def saved(here) -> Recipe:
    """As it is in ``run/run.yaml``."""
    argv = ["recipe=quickstart", "base=qwen3_4b", "training.seed=3", "data.label_map={1: violation}"]
    recipe = recipe_of("train", *argv)
    recipe.tracking.project = "team/${name}\\${x}"
    save_recipe(recipe, here / "run/run.yaml", {"command": "alora train recipe='a: b # c'"})
    return recipe


def test_a_saved_run_is_a_recipe(saved, here):
    assert read_saved_recipe(here / "run/run.yaml") == saved
    named = "recipe=run/run.yaml"
    assert recipe_of("train", named) == saved
    assert recipe_of("train", named, "base=smollm2").base.source == "smollm2"
    assert recipe_of("train", named, "training.seed=4").training.seed == 4


@pytest.mark.parametrize("below", ["", "/3"])
def test_it_runs_again_in_the_folder_of_another_name(saved, here, below):
    run_dir = f"{saved.run_dir}{below}"
    save_recipe(replace(saved, run_dir=run_dir), here / "run/run.yaml", {})
    assert recipe_of("train", "recipe=run/run.yaml").run_dir == run_dir
    again = recipe_of("train", "recipe=run/run.yaml", "name=again")
    assert again == replace(saved, name="again", run_dir=str(Path(saved.run_dir).with_name("again")) + below)
