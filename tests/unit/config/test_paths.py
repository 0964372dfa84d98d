"""Relative paths become absolute ones, in a stated order, or an error that lists the places."""

from pathlib import Path

import pytest

from alora.config.paths import absolute_paths
from alora.config.schema import Recipe
from alora.errors import ConfigError


@pytest.fixture
def places(tmp_path) -> list[Path]:
    folders = [tmp_path / name for name in ("cwd", "extra", "packaged")]
    for folder in folders:
        folder.mkdir()
    return folders


def test_the_first_place_that_has_the_file_counts(places):
    for place in places[1:]:
        (place / "rows.jsonl").write_text("")
    recipe = Recipe()
    recipe.data.train = "rows.jsonl"
    assert absolute_paths(recipe, "train", places).data.train == str(places[1] / "rows.jsonl")
    (places[0] / "rows.jsonl").write_text("")
    assert absolute_paths(recipe, "train", places).data.train == str(places[0] / "rows.jsonl")
    assert recipe.data.train == "rows.jsonl"  # the given recipe is left alone


def test_everything_missing_is_listed_with_every_place(places):
    recipe = Recipe()
    recipe.data.train, recipe.policy.file, recipe.base.source = "rows.jsonl", "policy.yaml", "./model"
    with pytest.raises(ConfigError) as caught:
        absolute_paths(recipe, "train", places)
    text = str(caught.value)
    assert all(str(place / name) in text for place in places for name in ("rows.jsonl", "policy.yaml"))
    assert "base.source: there is no folder './model'" in text


@pytest.mark.parametrize("value", ["-", "hub:name/of/set:train"])
def test_standard_input_and_hub_sets_stay(value, places):
    recipe = Recipe()
    recipe.conversation = recipe.data.train = value
    found = absolute_paths(recipe, "train", places)
    assert (found.conversation, found.data.train) == (value, value)


@pytest.mark.parametrize(("given", "kept"), [("smollm2", True), ("Qwen/Qwen3-4B", True), ("models/mine", False)])
def test_a_base_is_a_folder_only_when_it_is_there(given, kept, places):
    (places[0] / "models" / "mine").mkdir(parents=True)
    (places[0] / "smollm2").mkdir()
    recipe = Recipe()
    recipe.base.source = given
    found = absolute_paths(recipe, "train", places).base.source
    assert found == (given if kept else str(places[0] / given))


def test_outputs_lie_in_the_working_folder(places):
    recipe = Recipe(run_dir="runs/x", output="report.json")
    found = absolute_paths(recipe, "validate", places)
    assert (found.run_dir, found.output) == (str(places[0] / "runs/x"), str(places[0] / "report.json"))


def test_several_bundles(places):
    for place in places[:2]:
        (place / place.name).mkdir()
    recipe = Recipe(bundles=["cwd", "extra"])
    assert absolute_paths(recipe, "score", places).bundles == [str(place / place.name) for place in places[:2]]
    with pytest.raises(ConfigError, match="bundles: there is no 'other'"):
        absolute_paths(Recipe(bundles=["cwd", "other"]), "score", places)
