"""From command lines to recipes."""

import re
from dataclasses import is_dataclass, replace
from pathlib import Path

import pytest
import yaml

from alora.config import compose
from alora.config.paths import configs_folder, recipes_folder
from alora.config.schema import OF_ARTIFACT, Recipe
from alora.config.sweep import run_sweep
from alora.errors import ConfigError

HUB_IDS = {
    "qwen3_0_6b": "Qwen/Qwen3-0.6B",
    "qwen3_4b": "Qwen/Qwen3-4B",
    "qwen3_8b": "Qwen/Qwen3-8B",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B-Instruct",
    "gemma3_1b": "google/gemma-3-1b-it",
    "granite3_3_2b": "ibm-granite/granite-3.3-2b-instruct",
}
GROUPS = [path.name for path in configs_folder().iterdir() if path.is_dir() and path.name not in ("hydra", "recipe")]
OPTIONS = [(group, path.stem) for group in sorted(GROUPS) for path in sorted((configs_folder() / group).glob("*.yaml"))]
QUICK_KEYS = yaml.safe_load((configs_folder() / "training/quick.yaml").read_text())
RECIPES = sorted(path.stem for path in recipes_folder().glob("*.yaml"))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def recipes_of(verb: str, *argv: str, notes: list[str] | None = None) -> list[Recipe]:
    """The recipes that a command line stands for, one per job."""
    made: list[Recipe] = []
    note = (notes if notes is not None else []).append
    if "-m" in argv:
        assert swept(verb, argv, lambda recipe: made.append(recipe) or 0, note) == 0
        return made
    recipe = compose.load_recipe(verb, argv, note)
    return [] if recipe is None else [recipe]


def swept(verb, argv, run, note) -> int:
    """The highest exit code of a sweep's jobs."""

    def fails(error: BaseException) -> int:
        raise error

    records = run_sweep(verb, argv, lambda recipe: (run(recipe), None, False), fails, note)
    return max(record.exit_code for record in records)


def recipe_of(verb: str, *argv: str) -> Recipe:
    (recipe,) = recipes_of(verb, *argv)
    return recipe


def test_nothing_chosen_is_the_schema():
    recipe = recipe_of("doctor")
    expected = Recipe()
    expected.run_dir = str(Path.cwd() / "runs/run")
    assert recipe == expected


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_loads_and_sets_its_own_keys(group, option):
    recipe = recipe_of("doctor", f"{group}={option}")
    section = getattr(recipe, group)
    values = yaml.safe_load((configs_folder() / group / f"{option}.yaml").read_text())
    assert values
    assert own_values(section, values) == values


def own_values(section, keys):
    """What ``section`` holds under the nested ``keys``."""
    found = {key: getattr(section, key) for key in keys}
    return {key: own_values(value, keys[key]) if is_dataclass(value) else value for key, value in found.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_with_its_files(name):
    recipe = recipe_of("train", f"recipe={name}")
    assert recipe.name == name
    for path in (recipe.policy.file, recipe.data.train, recipe.data.validation, recipe.data.test):
        assert path is None or Path(path).is_file()


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_unknown_keys_are_named_at_once_however_they_are_written(sign):
    with pytest.raises(ConfigError) as caught:
        recipe_of("doctor", f"{sign}typo=1", f"{sign}data.columns.lable=x", "~gone")
    assert re.findall(r"unknown key '([\w.]+)'", str(caught.value)) == ["gone", "typo", "data.columns.lable"]


class TestLocalRecipe:
    BODY = "defaults:\n  - override /base: smollm2\nname: mine\ntraining:\n  epochs: 2\n"
    REST = ("+policy.title=x", "data.train=rows.jsonl")

    @pytest.fixture
    def rows(self, here):
        (here / "rows.jsonl").write_text("")

    @pytest.mark.usefixtures("rows")
    def test_is_found_in_the_working_folder(self, here):
        (here / "recipe.yaml").write_text(self.BODY)
        notes: list[str] = []
        (recipe,) = recipes_of("train", *self.REST, notes=notes)
        assert (recipe.name, recipe.training.epochs) == ("mine", 2.0)
        assert notes == ["using ./recipe.yaml"]

    def test_is_not_for_an_artifact(self, here):
        """What was trained before goes by its own run, whatever the recipe says by now; one that is named counts."""
        own = "base: {revision: old, dtype: float64}\npolicies: [a]\ndata: {columns: {label: other}}\n"
        own += "evaluation: {target: recall}\nstrict: true\n"
        (here / "recipe.yaml").write_text(self.BODY + own)
        for verb in OF_ARTIFACT:
            notes: list[str] = []
            (recipe,) = recipes_of(verb, "artifact=.", notes=notes)
            assert replace(recipe, artifact=None) == Recipe(run_dir=recipe.run_dir)
            assert "recipe.yaml is not read" in notes[0]
            given = recipe_of(verb, "artifact=.", "base=qwen3_4b", "base.dtype=bfloat16").base
            assert (given.source, given.dtype, given.revision) == (HUB_IDS["qwen3_4b"], "bfloat16", None)
            assert given.template_kwargs == {"enable_thinking": False}
        named = recipe_of("evaluate", "artifact=.", "recipe=recipe.yaml")
        assert (named.base.source, named.policies, named.data.columns.label) == ("smollm2", ["a"], "other")

    @pytest.mark.usefixtures("rows")
    @pytest.mark.parametrize("argv", [["recipe=quickstart"], ["--config-dir", "."]])
    def test_gives_way_to_what_is_named(self, here, argv):
        (here / "recipe.yaml").write_text(self.BODY)
        notes: list[str] = []
        (recipe,) = recipes_of("train", *argv, *self.REST, notes=notes)
        assert recipe.name != "mine"
        assert notes == []

    def test_a_choice_wins_over_its_own_values(self, here):
        (here / "recipe.yaml").write_text("base:\n  source: mine\n  dtype: float64\n")
        named = "recipe=recipe.yaml"
        assert recipe_of("score", named).base.source == "mine"
        base = recipe_of("score", named, "base=qwen3_4b").base
        assert (base.source, base.dtype) == (HUB_IDS["qwen3_4b"], "float64")
        assert recipe_of("score", named, "base=qwen3_4b", "base.source=other/model").base.source == "other/model"

    def test_an_option_stands_in_it_by_its_name(self, here):
        (here / "recipe.yaml").write_text("recipe: quickstart\nbase: qwen3_4b\nadapter: lora\nadapter_: 1\n")
        with pytest.raises(ConfigError, match=r"recipe\.yaml:4: unknown key 'adapter_'"):
            recipe_of("check")
        (here / "recipe.yaml").write_text("recipe: quickstart\nbase: qwen3_4b\nname: ${adapter.kind}\nadapter: lora\n")
        recipe = recipe_of("check")
        assert (recipe.base.source, recipe.name, recipe.policy.file) == (
            HUB_IDS["qwen3_4b"], "lora", str(recipes_folder() / "quickstart/policy.yaml")
        )  # fmt: skip
        other = recipe_of("check", "base=llama3_2_1b", "adapter=alora")
        assert (other.base.source, other.base.template_kwargs, other.name) == (HUB_IDS["llama3_2_1b"], {}, "alora")


@pytest.fixture
def conf(here) -> list[str]:
    """A user's own groups, and in the working folder folders of the same names."""
    files = {
        "conf/team/data/y.yaml": "columns: {label: label}\n",
        "conf/team/data/z.yaml": "columns: {label: other, id: key}\n",
        "conf/team/eval/x.yaml": "target: recall\n",
        "conf/data/floats.yaml": 'label_map: {"1.0": violation, "v1.0": ok}\n',
        "conf/site/a.yaml": "# @package _global_\ndata: {columns: {label: label}}\nstrict: true\n",
        "conf/evaluation/ours.yaml": "target: recall\nbootstrap: 3\n",
        "conf/recipe/ours.yaml": "# @package _global_\nevaluation: {target: fpr, target_value: 0.05}\nstrict: false\n",
        "site/a.yaml": "strict: 7\n",
        "training/quick.yaml": "epochs: 99\n",
    }
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    (here / "artifact").mkdir()
    return ["--config-dir", "conf", "artifact=artifact"]


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (["data.columns.label=x", "data.test=null"], {"data.columns.label", "data.test"}),
        (["data.label_map={a: b}", "++data.role_map.c=user"], {"data.label_map", "data.role_map"}),
        (["data={columns: {label: x}, test: null}"], {"data.columns.label", "data.test"}),
        (["prompt=turns", "training=quick"], {"prompt.layout", *(f"training.{name}" for name in QUICK_KEYS)}),
        (["+team/data@data=y"], {"data.columns.label"}),
        (["+team/data@data=[y,z]"], {"data.columns.label", "data.columns.id"}),
        (["+site=a"], {"data.columns.label", "strict"}),
        (["+data=floats"], {"data.label_map"}),
        (["evaluation=[ours]"], {"evaluation.bootstrap", "evaluation.target"}),
        (["recipe=ours"], set()),
        (["recipe=ours", "name=x"], {"name"}),
    ],
)
def test_the_keys_that_a_command_line_sets(conf, given, keys):
    (recipe,) = recipes_of("evaluate", *conf, *given)
    assert recipe.given == {"artifact", *keys}
    named = {"evaluation.target", "evaluation.target_value", "strict"} if "recipe=ours" in given else set()
    assert recipe.named == named


@pytest.mark.parametrize("choice", ["evaluation.target=recall", "+team/eval@evaluation=x"])
def test_another_target_comes_without_the_recipes_value(conf, choice):
    (recipe,) = recipes_of("recalibrate", *conf, "recipe=ours", choice)
    assert (recipe.evaluation.target, recipe.evaluation.target_value) == ("recall", None)
    (recipe,) = recipes_of("recalibrate", *conf, "recipe=ours", "evaluation=high_recall")
    assert (recipe.evaluation.target, recipe.evaluation.target_value) == ("recall", None)
    (recipe,) = recipes_of("recalibrate", *conf, "recipe=ours", "evaluation.target=fpr")
    assert recipe.evaluation.target_value == 0.05
    (recipe,) = recipes_of("recalibrate", *conf, "recipe=ours", "evaluation.target_value=0.9", choice)
    assert recipe.evaluation.target_value == 0.9


@pytest.mark.parametrize(
    ("override", "label", "labels"),
    [("data.columns.labels=ann", "label", "ann"), ("data.columns.label=x", "x", "labels"), ("strict=true", "l", "ls")],
)
def test_of_label_and_labels_the_one_on_the_command_line_hides_the_recipes_other_one(here, override, label, labels):
    (here / "r.yaml").write_text("data: {columns: {label: l, labels: ls}}\n")
    columns = recipe_of("doctor", "recipe=r.yaml", override).data.columns
    assert (columns.label, columns.labels) == (label, labels)
