"""Choices of the command line that a recipe would silence."""

from pathlib import Path

import pytest

from alora.config.precedence import label_choice, of_another_choice, option_values, silenced_choices
from alora.config.schema import ColumnSettings, EvaluationSettings, Recipe


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


def test_an_option_sets_what_its_header_and_the_options_that_it_includes_say(tmp_path, folders):
    for name, text in {
        "experiment/long.yaml": "# ours\n# @package _global_\ntraining: {max_steps: 2}\n",
        "data/columns/ann.yaml": "labels: ann\n",
        "base/ours.yaml": "defaults: [small, {/experiment: [long]}, {'optional inner': deep}]\ndtype: float32\n",
        "base/inner/deep.yaml": "# @package base\nrevision: x\n",
        "base/over.yaml": "defaults: [_self_, small]\nsource: big\n",
        "base/around.yaml": "defaults: [around]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert option_values("experiment", "long", folders) == {"training.max_steps": 2}
    assert option_values("data/columns", "ann", folders) == {"data.columns.labels": "ann"}
    assert option_values("base", "ours", folders) == {
        "base.source": "small", "training.max_steps": 2, "base.revision": "x", "base.dtype": "float32"
    }  # fmt: skip
    assert option_values("base", "over", folders) == {"base.source": "small"}
    assert option_values("base", "around", folders) == {}
    assert silenced_choices(["+experiment=long"], {"training": {"max_steps": 2}}, folders) == []


def test_of_label_and_labels_the_one_on_the_command_line_hides_the_recipes_other_one():
    recipe = ColumnSettings(label="%policy%_h", labels="ann")
    assert label_choice(recipe, {"data.columns.labels"}) == ColumnSettings(labels="ann")
    assert label_choice(recipe, {"data.columns.label"}) == ColumnSettings(label="%policy%_h")
    for both in ({"data.columns.label", "data.columns.labels"}, {"data.columns.id"}):
        assert label_choice(recipe, both) == recipe


def test_a_recipes_rate_is_for_the_recipes_own_target():
    recipe = Recipe(evaluation=EvaluationSettings(target="recall", target_value=0.05))
    assert "evaluation.target_value=0.05" in of_another_choice(recipe, {"evaluation.target"})[0]
    assert of_another_choice(recipe, {"evaluation.target", "evaluation.target_value"}) == []
    assert of_another_choice(recipe, set()) == []
    recipe.evaluation.target = "f1"
    assert of_another_choice(recipe, {"evaluation.target"}) == []
