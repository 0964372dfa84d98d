"""Settings whose keys are the user's own: every form that somebody types, and what is said of the wrong ones."""

import re
import shlex
from pathlib import Path

import pytest

from alora.errors import ConfigError
from tests.integration.config.test_compose import recipe_of

ROOT = Path(__file__).parents[3]
TABLE = {
    "data.columns.messages=dialogue data.columns.label=verdict": ("dialogue", {}),
    "data.columns.messages=asked,answered": ("asked,answered", {}),
    "data.columns.messages=context,question,answer": ("context,question,answer", {}),
    "data.columns.group=customer_id": ("messages", {}),
    "data.columns.label=%policy%": ("messages", {}),
    "data.columns.split=split": ("messages", {}),
    "'data.label_map={unsafe: violation, safe: ok}'": ("messages", {"unsafe": "violation", "safe": "ok"}),
    '\'data.label_map={"1": violation, "0": ok}\'': ("messages", {"1": "violation", "0": "ok"}),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_of_the_page_is_the_one_tested_here():
    page = (ROOT / "docs/policies.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`('?data\.(?:columns|label_map)[^`]*=[^`]*)`", page)) == set(TABLE)


@pytest.mark.parametrize("typed", TABLE)
def test_every_row_of_the_page_s_table_works_as_written(typed):
    recipe = recipe_of("doctor", *shlex.split(typed))
    assert (recipe.data.columns.messages, recipe.data.label_map) == TABLE[typed]


@pytest.mark.parametrize("labels", [{"ok": "No", "violation": "Yes"}, {"a": "Yes", "b": "No"}])
def test_labels_on_the_command_line_take_the_place_of_a_recipes_and_their_order_counts(tmp_path, labels):
    file = tmp_path / "r.yaml"
    file.write_text('# @package _global_\npolicy: {id: toy, title: x, rule: x, labels: {violation: "Yes", ok: "No"}}\n')
    typed = ", ".join(f'{name}: "{word}"' for name, word in labels.items())
    recipe = recipe_of("train", f"recipe={file}", f"policy.labels={{{typed}}}", f"data.train={file}")
    assert list(recipe.policy.labels.items()) == list(labels.items()), "the first is the positive one"


def test_bare_numbers_as_keys_of_a_file(here):
    (here / "r.yaml").write_text("data:\n  label_map: {1: violation, 0: ok}\n")
    with pytest.raises(ConfigError, match=r'r\.yaml:2: data\.label_map: the key 1 is read as int.*\{"1": \.\.\.\}'):
        recipe_of("train", "recipe=r.yaml")
