"""Choices of the command line that a recipe would silence, or that hide a recipe's."""

from alora.config.precedence import Choices, label_choice, of_another_choice, silenced_choices
from alora.config.schema import ColumnSettings, EvaluationSettings, Recipe

SMALL = Choices(options={"base.source": ("base=small", "small")})


def test_a_group_that_the_recipe_overrules_is_named():
    (told,) = silenced_choices(SMALL, {"base": {"source": "other"}})
    assert "base=small would have no effect" in told
    assert silenced_choices(SMALL, {"base": {"source": "small"}}) == []
    key = Choices(frozenset({"base.source"}), SMALL.options)
    assert silenced_choices(key, {"base": {"source": "other"}}) == []


def test_keys_with_dots_in_an_open_dictionary_are_keys():
    chosen = Choices(options={"data.label_map": ("data=floats", {"1.0": "violation"})})
    assert silenced_choices(chosen, {"data": {"label_map": {"1.0": "violation", "no": "ok"}}}) == []
    assert silenced_choices(chosen, {"data": {"label_map": {"1.0": "ok"}}})


def test_of_label_and_labels_the_one_on_the_command_line_hides_the_recipes_other_one():
    recipe = ColumnSettings(label="%policy%_h", labels="ann")
    assert label_choice(recipe, {"data.columns.labels"}) == ColumnSettings(labels="ann")
    assert label_choice(recipe, {"data.columns.label"}) == ColumnSettings(label="%policy%_h")
    for both in ({"data.columns.label", "data.columns.labels"}, {"data.columns.id"}):
        assert label_choice(recipe, both) == recipe


def test_a_recipes_rate_is_for_the_recipes_own_target():
    recipe, target = Recipe(evaluation=EvaluationSettings(target="recall", target_value=0.05)), "evaluation.target"
    assert "evaluation.target_value=0.05" in of_another_choice(recipe, Choices(frozenset({target})))[0]
    assert of_another_choice(recipe, Choices(frozenset({target, "evaluation.target_value"}))) == []
    assert of_another_choice(recipe, Choices()) == []
    assert of_another_choice(recipe, Choices(frozenset({target}), recipe={target: "recall"})) == []
    recipe.evaluation.target = "f1"
    assert of_another_choice(recipe, Choices(frozenset({target}))) == []
