"""Which key was meant."""

import pytest

from alora.config.convert import type_problems
from alora.config.explain import nearest_key, unknown_key_message
from alora.config.overrides import explain


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


def test_unknown_keys_are_found_at_any_depth_and_open_dictionaries_are_left_alone():
    values = {"name": "x", "nmae": 1, "data": {"columns": {"txt": "t"}, "label_map": {"any": "thing"}}, "policy": {}}
    assert [line.partition(":")[0] for line in type_problems(values)] == [
        "unknown key 'nmae'",
        "unknown key 'data.columns.txt'",
    ]
    assert len(type_problems({"training.epochs": 3, "training": None, "base": {"source": ["x"]}})) == 3


def test_a_key_like_no_other_points_to_the_help():
    assert unknown_key_message("zzzzzzzz") == "unknown key 'zzzzzzzz': --help lists every key"


def test_an_error_of_another_kind_keeps_its_text():
    assert explain(ValueError("first line\nsecond line")) == "first line\nsecond line"
