"""The values that a setting's own line of the schema allows."""

from functools import reduce

import pytest

from alora.config.needs import check_recipe
from alora.config.schema import Recipe
from alora.config.setting import settings_of
from alora.errors import ConfigError

LIMITS = {key: limits for key, _, limits in settings_of(Recipe)}
KINDS = {key: kind for key, kind, _ in settings_of(Recipe)}
CHOICES = [key for key, limits in LIMITS.items() if limits.choices]
RANGES = [key for key, limits in LIMITS.items() if max(limits.least, limits.above) > -2]


def shaped(key: str, value: object) -> object:
    """``value`` as the setting ``key`` holds it: a list of it where that is a list."""
    return [value] if "list" in str(KINDS[key]) else value


def recipe_with(key: str, value: object) -> Recipe:
    recipe = Recipe()
    *sections, name = key.split(".")
    section = reduce(getattr, sections, recipe)
    assert hasattr(section, name)
    setattr(section, name, value)
    return recipe


def test_most_settings_say_their_limits():
    assert len(CHOICES) >= 20
    assert len(RANGES) >= 50


@pytest.mark.parametrize("key", CHOICES)
def test_choices(key):
    for value in LIMITS[key].choices:
        recipe = recipe_with(key, shaped(key, value))
        if value == "trl":
            recipe.adapter.kind = "lora"  # TRL trains nothing else
        if value == "judge":
            recipe.judge.url, recipe.judge.model = "https://host/v1", "m"
        check_recipe(recipe, "doctor")
    with pytest.raises(ConfigError, match=rf"{key} is .*'other'.*; .*{', '.join(LIMITS[key].choices)}"):
        check_recipe(recipe_with(key, shaped(key, "other")), "doctor")


@pytest.mark.parametrize("key", RANGES)
def test_ranges(key):
    with pytest.raises(ConfigError, match=rf"{key} is \[?-2\]?; .*{LIMITS[key].words}"):
        check_recipe(recipe_with(key, shaped(key, -2)), "doctor")


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("training.warmup_ratio", (0, 1), (-0.01, 1.01)),
        ("training.max_steps", (-1, 1, 2**32), (0, -2, 2**32 + 1)),
        ("training.threads", (None, 1, 1024), (0, 1025)),
        ("training.prefix_cache_bytes", (0, 2**40), (2**62 + 1,)),
        ("training.learning_rate", (1e-300, 1e300), (0.0, float("inf"), float("nan"))),
        ("data.validation_share", (0.01, 0.99), (0, 1)),
        ("fleet.tolerance", (0, 0.99), (-0.01, 1)),
        ("evaluation.target_value", (None, 0.5), (0, 1, 5)),
        ("evaluation.false_negative_cost", (None, 0.5), (0, -1, float("inf"), float("nan"))),
        ("compare.ranks", ([], [1, 2]), ([0], [2, 2])),
        ("compare.seeds", ([0],), ([], [-1], [1, 1])),
        ("bench.prefixes", ([1],), ([], [0], [1, 1])),
        ("bench.serving.systems", (["base"],), ([], ["base", "base"])),
        ("fleet.figures", (["f1", "f1"],), ([],)),
        ("base.device", ("auto", "cuda:11"), ("cuda:x", "mps")),
        ("run_dir", ("x",), ("",)),
    ],
)
def test_where_limits_begin_and_end(key, right, wrong):
    for value in right:
        check_recipe(recipe_with(key, value), "doctor")
    for value in wrong:
        with pytest.raises(ConfigError, match=key):
            check_recipe(recipe_with(key, value), "doctor")
