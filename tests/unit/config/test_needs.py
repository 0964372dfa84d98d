"""Values that no command can run with."""

import pytest

from alora.config.needs import check_recipe
from alora.config.schema import Recipe
from alora.errors import ConfigError
from tests.unit.config.test_setting import recipe_with


def test_the_defaults_are_fine():
    check_recipe(Recipe(), "doctor")


def test_a_comparison_does_not_pass_over_the_engine_that_was_asked_for():
    recipe = recipe_with("training.engine", "trl")
    recipe.adapter.kind = "lora"
    with pytest.raises(ConfigError, match=r"engine=trl has no effect on compare.*alora train adapter=lora"):
        check_recipe(recipe, "compare")
    with pytest.raises(ConfigError) as caught:  # negative control
        check_recipe(recipe, "train")
    assert "no effect" not in str(caught.value)


def test_label_weights_are_of_alora_s_own_loss():
    recipe = recipe_with("training.class_weights", "balanced")
    recipe.policy.title, recipe.data.train, recipe.adapter.kind = "t", "rows.jsonl", "lora"
    check_recipe(recipe, "train")
    recipe.training.engine = "trl"
    with pytest.raises(ConfigError, match=r"class_weights has no effect on training\.engine=trl"):
        check_recipe(recipe, "train")


@pytest.mark.parametrize(("train", "count"), [("rows.jsonl", 1), (["a.jsonl", "b.csv"], 2), ("generate", 1)])
def test_each_source_has_a_weight(train, count):
    recipe = recipe_with("data.weights", [0.5, 1.0, 2.0][:count])
    recipe.policy.title, recipe.data.train, recipe.adapter.kind = "t", train, "lora"
    if train != "generate":
        check_recipe(recipe, "train")
    recipe.data.weights.append(1.0)
    with pytest.raises(ConfigError, match=f"data.weights has {count + 1} numbers, and data.train {count} sources"):
        check_recipe(recipe, "train")
    recipe.data.weights, recipe.training.engine = [1.0] * count, "trl"
    with pytest.raises(ConfigError, match=r"data\.weights has no effect on training\.engine=trl"):
        check_recipe(recipe, "train")


@pytest.mark.parametrize(
    ("name", "role", "problem"),
    [
        ("Berater", "assistent", "'Berater' is 'assistent', which is no role; choose one of system, user"),
        ("Kundin", "human", "'Kundin' is 'human', which is no role"),
        ("user", "assistant", "'user' is a role and stays one, not 'assistant'; rename it in the rows"),
        ("tool", "user", "'tool' is a role and stays one"),
        ("user", "user", None),
        ("User", "assistant", None),
    ],
)
def test_a_role_is_mapped_to_a_role_and_from_none(name, role, problem):
    recipe = recipe_with("data.role_map", {name: role})
    if problem is None:
        check_recipe(recipe, "doctor")
    else:
        with pytest.raises(ConfigError, match=f"data.role_map: {problem}"):
            check_recipe(recipe, "doctor")


@pytest.mark.parametrize("verb", ["check", "train"])
def test_an_inline_policy_is_a_policy(verb):
    recipe = recipe_with("base.source", "smollm2")
    recipe.data.train = "rows.jsonl"
    recipe.policy.id, recipe.policy.title, recipe.policy.rule = "x", "X", "No x."
    check_recipe(recipe, verb)
    recipe.policy.file = "policy.yaml"
    with pytest.raises(ConfigError, match="both given"):
        check_recipe(recipe, verb)


def trainable() -> Recipe:
    recipe = Recipe()
    recipe.policy.title, recipe.data.train = "t", "rows.jsonl"
    return recipe


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("target_value", "fpr"),
        ("target_value", "recall"),
        ("false_positive_cost", "cost"),
        ("false_negative_cost", "cost"),
    ],
)
def test_a_setting_of_another_target_is_refused_before_anything_is_trained(name, target):
    recipe = trainable()
    setattr(recipe.evaluation, name, 0.5)
    for other in (None, "f1", "fpr" if target == "cost" else "cost"):
        recipe.evaluation.target = other
        with pytest.raises(ConfigError, match=rf"evaluation\.{name}=0\.5 has no effect on target={other or 'f1'}; add"):
            check_recipe(recipe, "train")
    recipe.evaluation.target = target
    check_recipe(recipe, "train")


@pytest.mark.parametrize(("key", "value"), [("id", "a"), ("title", "T"), ("rule", "R"), ("labels", {"x": "y"})])
def test_what_is_of_one_policy_is_not_passed_over_for_several(key, value):
    recipe = trainable()
    recipe.policy.title, recipe.policy.file, recipe.policies = None, "policies.yaml", ["a", "b"]
    check_recipe(recipe, "check")
    setattr(recipe.policy, key, value)
    with pytest.raises(ConfigError, match=rf"policy\.{key} is of one policy, and policies=\[a,b\]"):
        check_recipe(recipe, "check")
    recipe.policies = []
    if key != "rule":  # which does not go with a file at all
        check_recipe(recipe, "check")
