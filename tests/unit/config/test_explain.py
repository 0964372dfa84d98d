"""Which key was meant."""

import pytest

from alora.config.explain import nearest_key, unknown_key_message


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
