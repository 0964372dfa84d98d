"""Plain values become the schema's types, or a line each on what is wrong with them."""

import pytest

from alora.config.fill import TYPES, fill, fresh, keys_of, nearest_key, resolved
from alora.errors import ConfigError


def problems(values, in_file=True) -> list[str]:
    return [problem for _, problem in fill(fresh(), values, in_file)]


def filled(values):
    recipe = fresh()
    assert list(fill(recipe, values, in_file=True)) == []
    return resolved(recipe)


def test_unknown_keys_are_found_at_any_depth_and_open_dictionaries_are_left_alone():
    values = {"name": "x", "nmae": 1, "data": {"columns": {"txt": "t"}, "label_map": {"any": "thing"}}, "policy": {}}
    assert [keys for keys, _ in fill(fresh(), values, in_file=True)] == [("nmae",), ("data", "columns", "txt")]
    assert len(problems({"training.epochs": 3, "training": None, "base": {"source": ["x"]}})) == 3
    assert set(keys_of(values)) == {"name", "nmae", "data.columns.txt", "data.label_map"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epochs", "many", "training.epochs is 'many'; it must be a number, or null"),
        ("learning_rate", 10**400, "it must be a number, or null"),
        ("seed", 1.5, "training.seed is 1.5; it must be a whole number"),
        ("seed", None, "training.seed cannot be null; leave it out, or give it a value"),
        ("shard_base", "perhaps", "training.shard_base is 'perhaps'; it must be true or false"),
        ("scheduler", ["a"], "training.scheduler is ['a']; it must be a text"),
    ],
    ids=range(6),
)
def test_a_value_of_another_type(key, value, words):
    (problem,) = problems({"training": {key: value}})
    assert words in problem


def test_references_are_followed_and_a_broken_one_is_named():
    recipe = filled({"name": "seed_${training.seed}", "policy": {"rule": "costs \\${x}"}})
    assert (recipe.name, recipe.run_dir, recipe.policy.rule) == ("seed_0", "runs/seed_0", "costs ${x}")
    with pytest.raises(ConfigError, match=r"data\.train refers nowhere .*'nope'.*; give it a value"):
        filled({"data": {"train": "${nope}"}})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("training.epcohs", "training.epochs"),
        ("epochs", "training.epochs"),
        ("learning_rte", "training.learning_rate"),
        ("artefact", "artifact"),
        ("zzzzzzzz", None),
        ("seed", "training.seed"),
        ("training.lr", "training.learning_rate"),
        ("bench.sede", "bench.seed"),
    ],
)
def test_nearest_key(typed, meant):
    assert nearest_key(typed) == meant
    assert meant is None or meant in TYPES


@pytest.mark.parametrize("value", ["all-linear", ["all-linear"]])
def test_all_linear_needs_no_brackets(value):
    assert filled({"adapter": {"targets": value}}).adapter.targets == ["all-linear"]
