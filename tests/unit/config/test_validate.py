"""Values that no command can run with."""

from functools import reduce

import pytest

from alora.config.explain import schema_types
from alora.config.schema import Recipe
from alora.config.validate import CHOICES, RANGES, check_recipe
from alora.errors import ConfigError


def recipe_with(key: str, value: object) -> Recipe:
    recipe = Recipe()
    *sections, name = key.split(".")
    section = reduce(getattr, sections, recipe)
    assert hasattr(section, name)
    setattr(section, name, value)
    return recipe


def test_the_defaults_are_fine():
    check_recipe(Recipe(), "doctor")


def test_every_rule_is_about_a_key_of_the_schema():
    keys = {key for key, _ in schema_types()}
    assert set(CHOICES) | set(RANGES) <= keys


@pytest.mark.parametrize("key", CHOICES)
def test_choices(key):
    for value in CHOICES[key]:
        recipe = recipe_with(key, value)
        if value == "trl":
            recipe.adapter.kind = "lora"  # TRL trains nothing else
        check_recipe(recipe, "doctor")
    with pytest.raises(ConfigError, match=f"{key} is 'other'; choose one of {', '.join(CHOICES[key])}"):
        check_recipe(recipe_with(key, "other"), "doctor")


def test_a_comparison_does_not_pass_over_the_engine_that_was_asked_for():
    recipe = recipe_with("training.engine", "trl")
    recipe.adapter.kind = "lora"
    with pytest.raises(ConfigError, match=r"engine=trl has no effect on compare.*alora train adapter=lora"):
        check_recipe(recipe, "compare")
    with pytest.raises(ConfigError) as caught:  # negative control
        check_recipe(recipe, "train")
    assert "no effect" not in str(caught.value)


@pytest.mark.parametrize("key", RANGES)
def test_ranges(key):
    with pytest.raises(ConfigError, match=f"{key} is -2; it must be"):
        check_recipe(recipe_with(key, -2), "doctor")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", ".."),
        ("name", "a/b"),
        ("base.device", "gpu"),
        ("base.device", "cuda:"),
        ("adapter.targets", []),
        ("adapter.targets", ["q_proj", "q_proj"]),
        ("identity.dtypes", ["float16"]),
        ("training.scheduler", "cosin"),
        ("training.max_steps", 0),
        ("training.learning_rate", 0.0),
        ("training.learning_rate", float("nan")),
        ("training.seed", 2**32),
        ("data.validation_share", 1.0),
        ("base.source", ""),
        ("policy.labels", {"bad": "True", "good": "False"}),
    ],
)
def test_other_values(key, value):
    with pytest.raises(ConfigError, match=key):
        check_recipe(recipe_with(key, value), "doctor")


def test_all_problems_at_once():
    recipe = recipe_with("adapter.rank", 0)
    recipe.prompt.layout = "turn"
    with pytest.raises(ConfigError) as caught:
        check_recipe(recipe, "train")
    text = str(caught.value)
    assert all(words in text for words in ("adapter.rank", "prompt.layout", "no policy", "no training rows"))
    assert len(text.splitlines()) == 4


@pytest.mark.parametrize("verb", ["validate", "evaluate", "export"])
def test_verbs_that_need_an_artifact(verb):
    with pytest.raises(ConfigError, match=f"alora {verb} needs artifact=DIR"):
        check_recipe(Recipe(), verb)
    check_recipe(Recipe(artifact="x"), verb)


@pytest.mark.parametrize("verb", ["check", "train"])
def test_an_inline_policy_is_a_policy(verb):
    recipe = recipe_with("base.source", "smollm2")
    recipe.data.train = "rows.jsonl"
    recipe.policy.id, recipe.policy.title, recipe.policy.rule = "x", "X", "No x."
    check_recipe(recipe, verb)
    recipe.policy.file = "policy.yaml"
    with pytest.raises(ConfigError, match="both given"):
        check_recipe(recipe, verb)


@pytest.mark.parametrize(
    ("engine", "verb", "message"),
    [
        ("http://localhost:8000", "validate", "only alora score asks a server"),
        ("http://", "score", "choose one of transformers, vllm"),
        ("http://host:99999", "score", "engine is 'http://host:99999'"),
        ("http://host:port", "score", "engine is 'http://host:port'"),
        ("http://[::1", "score", "engine is 'http://"),
        ("http://host/a b", "score", "engine is 'http://host/a b'"),
        ("vlm", "score", "engine is 'vlm'; choose one of transformers, vllm"),
    ],
)
def test_engines(engine, verb, message):
    for known in ("transformers", "vllm", "https://host:8000/v1"):
        check_recipe(recipe_with("engine", known), "score")
    recipe = recipe_with("engine", engine)
    recipe.artifact = "runs/x"
    with pytest.raises(ConfigError, match=message):
        check_recipe(recipe, verb)
