"""Plain values become the schema's types, or a line each on what is wrong with them."""

import pytest

from alora.config.convert import nearest_key, type_problems, typed_recipe, unknown_key_message
from alora.errors import ConfigError


def test_unknown_keys_are_found_at_any_depth_and_open_dictionaries_are_left_alone():
    values = {"name": "x", "nmae": 1, "data": {"columns": {"txt": "t"}, "label_map": {"any": "thing"}}, "policy": {}}
    assert [line.partition(":")[0] for line in type_problems(values)] == [
        "unknown key 'nmae'",
        "unknown key 'data.columns.txt'",
    ]
    assert len(type_problems({"training.epochs": 3, "training": None, "base": {"source": ["x"]}})) == 3


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epochs", "many", "training.epochs is 'many'; it must be a number, or null"),
        pytest.param(
            "learning_rate",
            10**400,
            f"training.learning_rate is 1{'0' * 199}; it must be a number, or null",
            id="beyond-floats",
        ),
        ("seed", 1.5, "training.seed is 1.5; it must be a whole number"),
        ("seed", None, "training.seed cannot be null; leave it out, or give it a value"),
        ("shard_base", "perhaps", "training.shard_base is 'perhaps'; it must be true or false"),
        ("scheduler", ["a"], "training.scheduler is ['a']; it must be a text"),
    ],
)
def test_a_value_of_another_type(key, value, words):
    assert type_problems({"training": {key: value}}) == [words]


def test_every_wrong_value_at_once():
    values = {"compare": {"seeds": [0, "x"]}, "data": {"label_map": 3}, "policy": {"labels": {1: "x"}}, "json": "what"}
    with pytest.raises(ConfigError) as caught:
        typed_recipe(values)
    lines = str(caught.value).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "compare.seeds",
        "data.label_map",
        "policy.labels",
        "json",
    ]
    assert "each a whole number" in lines[0]
    assert "KEY: VALUE" in lines[1]
    assert '{"1": ...}' in lines[2]


def test_references_are_followed_and_a_broken_one_is_named():
    recipe = typed_recipe({"name": "seed_${training.seed}", "policy": {"rule": "costs \\${x}"}})
    assert (recipe.name, recipe.run_dir, recipe.policy.rule) == ("seed_0", "runs/seed_0", "costs ${x}")
    with pytest.raises(ConfigError, match=r"data\.train: Interpolation key 'nope' not found; give it a value"):
        typed_recipe({"data": {"train": "${nope}"}})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("training.epcohs", "training.epochs"),
        ("train.epochs", "training.epochs"),
        ("epochs", "training.epochs"),
        ("lr", None),
        ("learning_rte", "training.learning_rate"),
        ("polcy.file", "policy.file"),
        ("artefact", "artifact"),
        ("zzzzzzzz", None),
        ("seed", "training.seed"),
        ("rank", "adapter.rank"),
        ("model", "base.source"),
        ("judge.modle", "judge.model"),
        ("bench.sede", "bench.seed"),
    ],
)
def test_nearest_key(typed, meant):
    assert nearest_key(typed) == meant


def test_a_key_like_no_other_points_to_the_help():
    assert unknown_key_message("zzzzzzzz") == "unknown key 'zzzzzzzz': --help lists every key"


@pytest.mark.parametrize("value", ["all-linear", ["all-linear"]])
def test_all_linear_needs_no_brackets(value):
    assert typed_recipe({"adapter": {"targets": value}}).adapter.targets == ["all-linear"]
