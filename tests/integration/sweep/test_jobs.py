"""Which jobs a sweep has, and where each writes."""

from pathlib import Path

import pytest

from alora.config.sweep import DONE, run_sweep
from tests.integration.config.test_compose import recipes_of


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_job_for_each_value_and_nothing_left(here):
    given = ["recipe=quickstart", "training.seed=1,2", "name=seed_${training.seed}"]
    recipes = recipes_of("train", "-m", *given)
    assert [Path(recipe.run_dir).relative_to(here) for recipe in recipes] == [Path("runs/seed_1"), Path("runs/seed_2")]
    assert list(here.iterdir()) == []


def test_jobs_that_nothing_tells_apart_get_numbered_folders(here):
    recipes = recipes_of("train", "-m", "recipe=quickstart", "name=a,b", "training.seed=1,2")
    assert [(Path(item.run_dir).relative_to(here), item.training.seed) for item in recipes] == [
        (Path("runs/a/0"), 1), (Path("runs/a/1"), 2), (Path("runs/b/2"), 1), (Path("runs/b/3"), 2)
    ]  # fmt: skip


def test_of_a_key_given_twice_the_last_counts_as_in_a_single_run():
    given = ["recipe=quickstart", "training.max_steps=6,12", "training.seed=1,2", "training.max_steps=3,4"]
    made, seeds_first = [], [(1, 3), (1, 4), (2, 3), (2, 4)]
    records = run_sweep("train", ["-m", *given], lambda one: (made.append(one) or 0, None, False), pytest.fail, str)
    assert [(one.training.seed, one.training.max_steps) for one in made] == seeds_first
    assert [(record.changed, record.outcome) for record in records] == [
        (f"training.seed={seed} training.max_steps={steps}", DONE) for seed, steps in seeds_first
    ]
    (one, _) = recipes_of("train", "-m", "recipe=quickstart", "training.seed=1,2", "++training.seed=3", "name=a,b")
    assert one.training.seed == 3, "two jobs, by name alone"


def test_a_job_that_fails_does_not_lose_the_others():
    codes = {"a": 1, "b": 0, "c": 2}
    argv = ["-m", "recipe=quickstart", "name=a,b,c"]
    records = run_sweep("train", argv, lambda recipe: (codes[recipe.name], None, False), pytest.fail, str)
    assert [record.exit_code for record in records] == list(codes.values())
