"""From command lines to recipes."""

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from alora.config import compose, hydra_main
from alora.config.paths import configs_folder, recipes_folder
from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import OF_ARTIFACT, Recipe
from alora.config.sweep import DONE, run_sweep
from alora.errors import ConfigError
from tests.integration.config.test_saved import environment_above

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


def test_there_are_options_and_recipes_to_test():
    assert {"base", "adapter", "policy", "prompt", "training", "evaluation"} <= set(GROUPS)
    assert {"quickstart", "lora_baseline"} <= set(RECIPES)
    assert len(OPTIONS) >= 15


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


def test_hub_ids_and_thinking_off_for_qwen3():
    found = {name: recipe_of("doctor", f"base={name}").base for name in HUB_IDS}
    assert {name: base.source for name, base in found.items()} == HUB_IDS
    for name, base in found.items():
        assert base.template_kwargs == ({"enable_thinking": False} if name.startswith("qwen3") else {})


def test_a_recipe_on_another_base_and_adapter():
    recipe = recipe_of("train", "recipe=quickstart", "base=qwen3_4b", "adapter=lora", "adapter.rank=4")
    assert (recipe.base.source, recipe.adapter.kind, recipe.adapter.rank) == ("Qwen/Qwen3-4B", "lora", 4)


@pytest.mark.parametrize("override", ["training=null", "recipe=null", "base=3", "policy=[1,2]"])
def test_a_section_takes_the_name_of_an_option(override):
    with pytest.raises(ConfigError, match=r"takes the name of one of its options; .* or set values below it"):
        recipe_of("train", "recipe=quickstart", override)


@pytest.mark.parametrize("key", ["typo", "training.typo", "base.template", "data.columns.lable"])
@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_unknown_key_is_an_error_however_it_is_written(sign, key):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        recipe_of("doctor", f"{sign}{key}=1")


def test_all_unknown_keys_at_once():
    with pytest.raises(ConfigError) as caught:
        recipe_of("doctor", "+one=1", "+training.two=2")
    assert "'one'" in str(caught.value)
    assert "'training.two'" in str(caught.value)


def test_open_dictionaries_take_new_keys():
    recipe = recipe_of("doctor", "+policy.labels.bad=Yes", "+policy.labels.good=No", "+data.label_map.1=bad")
    assert recipe.policy.labels == {"bad": "Yes", "good": "No"}
    assert recipe.data.label_map == {"1": "bad"}


@pytest.mark.parametrize("name", ["back\\slash", "a\\\\b", "end\\", 'we "talk"', 'x\\"y', "it's", "a, {b}"])
def test_a_name_with_any_character_names_that_file(name, here):
    (here / name).write_text("")
    assert recipe_of("score", name).conversation == str(here / name)


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

    @pytest.mark.usefixtures("rows")
    def test_the_command_line_still_wins(self, here):
        (here / "recipe.yaml").write_text(self.BODY)
        recipe = recipe_of("train", *self.REST, "base=llama3_2_1b", "training.epochs=3")
        assert (recipe.base.source, recipe.training.epochs) == (HUB_IDS["llama3_2_1b"], 3.0)

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
    @pytest.mark.parametrize("argv", [["recipe=quickstart"], ["--config-name", "config"], ["--config-dir", "."]])
    def test_gives_way_to_what_is_named(self, here, argv):
        (here / "recipe.yaml").write_text(self.BODY)
        notes: list[str] = []
        (recipe,) = recipes_of("train", *argv, *self.REST, notes=notes)
        assert recipe.name != "mine"
        assert notes == []

    def test_can_lie_elsewhere_with_its_files(self, here):
        other = here.parent / "other"
        other.mkdir()
        (other / "mine.yaml").write_text(self.BODY + "policy:\n  file: policy.yaml\ndata:\n  train: rows.jsonl\n")
        (other / "policy.yaml").write_text("")
        (other / "rows.jsonl").write_text("")
        recipe = recipe_of("train", "recipe=../other/mine.yaml")
        assert recipe.policy.file == str(other / "policy.yaml")
        assert recipe.data.train == str(other / "rows.jsonl")

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

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("name: [", r"recipe.yaml:\d+: not YAML"),
            ("- a\n- b\n", "a recipe is a YAML mapping"),
            ("naem: x\n", "recipe.yaml:1: unknown key 'naem'"),
            ("training:\n  epochs: soon\n", "recipe.yaml:2: training.epochs is .soon.; it must be a number"),
            ("training: 3\n", "training is 3, but it is a section; set keys below it, such as training.epochs"),
            ("data:\n  columns: text\n", "data.columns is text, but it is a section"),
            (
                "defaults:\n  - override /base: smollm3\n",
                "base=smollm3: there is no such option; did you mean base=smollm2?",
            ),
            ("name: ${nope}\n", "nope"),
            ("policy:\n  labels: {bad: Yes, good: No}\n", "put the word in quotes"),
            ("a: \x00\n", "not YAML"),
        ],
    )
    def test_a_mistake_in_it_is_told(self, here, text, words):
        (here / "recipe.yaml").write_text(text)
        with pytest.raises(ConfigError, match=f"(?s){words}"):
            recipe_of("train")


class TestConfigDir:
    def test_brings_recipes_and_files_of_its_own(self, here):
        extra = here / "extra"
        (extra / "recipe").mkdir(parents=True)
        (extra / "recipe" / "ours.yaml").write_text(
            "# @package _global_\nname: ours\npolicy:\n  file: rule.yaml\ndata:\n  train: rows.jsonl\n"
        )
        (extra / "rule.yaml").write_text("")
        (extra / "recipe" / "rows.jsonl").write_text("")
        recipe = recipe_of("train", "--config-dir", "extra", "recipe=ours", "base=smollm2")
        assert recipe.policy.file == str(extra / "rule.yaml")
        assert recipe.data.train == str(extra / "recipe" / "rows.jsonl")


class TestSavedRun:
    ENVIRONMENT: ClassVar = {"torch": "2.13.0", "command": "alora train recipe='a: b # c'"}

    @pytest.fixture
    def saved(self, here) -> tuple[Recipe, Path]:
        argv = ["recipe=quickstart", "base=qwen3_4b", "training.seed=3", "+data.label_map.yes=violation"]
        recipe = recipe_of("train", *argv)
        save_recipe(recipe, here / "run" / "run.yaml", self.ENVIRONMENT)
        return recipe, here / "run"

    def test_reloads_as_its_own_input(self, saved):
        recipe, folder = saved
        assert recipe_of("train", "--config-dir", str(folder), "--config-name", "run") == recipe

    def test_text_that_looks_like_an_interpolation_stays_text(self, saved):
        recipe, folder = saved
        recipe.tracking.project = "team/${name}\\${x}"
        save_recipe(recipe, folder / "run.yaml", self.ENVIRONMENT)
        assert recipe_of("train", "--config-dir", str(folder), "--config-name", "run") == recipe

    @pytest.mark.parametrize("below", ["", "/3"])
    def test_runs_again_in_the_folder_of_another_name(self, saved, below):
        recipe, folder = saved
        run_dir = f"{recipe.run_dir}{below}"
        save_recipe(replace(recipe, run_dir=run_dir), folder / "run.yaml", self.ENVIRONMENT)
        assert recipe_of("train", "recipe=run/run.yaml").run_dir == run_dir
        again = recipe_of("train", "recipe=run/run.yaml", "name=again")
        assert again == replace(recipe, name="again", run_dir=str(Path(recipe.run_dir).with_name("again")) + below)

    @pytest.mark.parametrize(
        ("run_dir", "again"),
        [
            ("shop/out", "shop/out"),  # the project is named like the run
            ("shop/shop/0", "shop/v2/0"),
            ("shop/../elsewhere/shop/out", "shop/../elsewhere/shop/out"),
            ("archive/shop/out", "archive/shop/out"),
            ("archive/shop", "archive/v2"),
        ],
    )
    def test_a_folder_that_has_the_runs_name_by_chance_keeps_it(self, here, monkeypatch, run_dir, again):
        (here / "shop").mkdir()
        monkeypatch.chdir(here / "shop")
        recipe = replace(recipe_of("train", "recipe=quickstart"), name="shop", run_dir=str(here / run_dir))
        save_recipe(recipe, here / "run.yaml", self.ENVIRONMENT)
        assert recipe_of("train", "recipe=../run.yaml").run_dir == str(here / run_dir)
        assert recipe_of("train", "recipe=../run.yaml", "name=v2").run_dir == str(here / again)

    def test_reads_back_typed(self, saved):
        recipe, folder = saved
        assert read_saved_recipe(folder / "run.yaml") == recipe
        assert environment_above(folder / "run.yaml") == self.ENVIRONMENT

    def test_group_choices_still_win_over_it(self, saved):
        _, folder = saved
        base = ["--config-dir", str(folder), "--config-name", "run"]
        assert recipe_of("train", *base, "base=smollm2").base.source == "smollm2"
        assert recipe_of("train", *base, "training.seed=4").training.seed == 4

    def test_keys_of_another_version_are_refused(self, saved):
        _, folder = saved
        with (folder / "run.yaml").open("a") as file:
            file.write("retired: 1\n")
        with pytest.raises(ConfigError, match="retired"):
            recipe_of("train", "--config-dir", str(folder), "--config-name", "run")
        with pytest.raises(ConfigError, match="another version of alora"):
            read_saved_recipe(folder / "run.yaml")


class TestSweep:
    def test_runs_one_job_for_each_value_and_leaves_nothing(self, here):
        recipes = recipes_of("train", "-m", "recipe=quickstart", "name=a,b", "training.seed=1")
        assert [recipe.name for recipe in recipes] == ["a", "b"]
        assert [Path(recipe.run_dir).name for recipe in recipes] == ["a", "b"]
        assert list(here.iterdir()) == []

    def test_name_may_follow_what_is_swept(self):
        recipes = recipes_of("train", "-m", "recipe=quickstart", "training.seed=1,2", "name=seed_${training.seed}")
        assert [recipe.name for recipe in recipes] == ["seed_1", "seed_2"]

    def test_jobs_that_nothing_tells_apart_get_numbered_folders(self, here):
        recipes = recipes_of("train", "-m", "recipe=quickstart", "name=a,b", "training.seed=1,2")
        assert [(Path(item.run_dir).relative_to(here), item.training.seed) for item in recipes] == [
            (Path("runs/a/0"), 1), (Path("runs/a/1"), 2), (Path("runs/b/2"), 1), (Path("runs/b/3"), 2)
        ]  # fmt: skip

    def test_of_a_key_given_twice_the_last_counts_as_in_a_single_run(self):
        given = ["recipe=quickstart", "training.max_steps=6,12", "training.seed=1,2", "training.max_steps=3,4"]
        made, seeds_first = [], [(1, 3), (1, 4), (2, 3), (2, 4)]
        records = run_sweep("train", ["-m", *given], lambda one: (made.append(one) or 0, None, False), pytest.fail, str)
        assert [(one.training.seed, one.training.max_steps) for one in made] == seeds_first
        assert [(record.changed, record.outcome) for record in records] == [
            (f"training.seed={seed} training.max_steps={steps}", DONE) for seed, steps in seeds_first
        ]
        (one, _) = recipes_of("train", "-m", "recipe=quickstart", "training.seed=1,2", "++training.seed=3", "name=a,b")
        assert one.training.seed == 3, "two jobs, by name alone"
        labels = [
            "policy=off_topic",
            "policy.labels={a: x, b: y}",
            "data.train=rows.jsonl",
            "policy.labels={c: x, d: y}",
        ]
        Path("rows.jsonl").touch()
        for jobs in ([], ["-m", "training.seed=1,2"]):
            assert [one.policy.labels for one in recipes_of("train", *labels, *jobs)] == [
                {"c": "x", "d": "y"} for _ in range(max(1, len(jobs)))
            ]

    def test_a_job_that_fails_does_not_lose_the_others(self):
        seen = []

        def run(recipe: Recipe) -> int:
            seen.append(recipe.name)
            return {"a": 1, "b": 0, "c": 2}[seen[-1]]

        assert swept("train", ["-m", "recipe=quickstart", "name=a,b,c"], run, lambda text: None) == 2
        assert seen == ["a", "b", "c"]


def test_hydra_prints_its_help_and_config(capsys):
    for argv, words in (
        (["--help", "all"], ["base: gemma3_1b", "training:", "seed: 0"]),
        (["--cfg", "job"], ["training:"]),
    ):
        with contextlib.suppress(SystemExit):
            assert recipes_of("train", *argv) == []
        text = capsys.readouterr().out
        assert all(word in text for word in words)


@pytest.mark.parametrize(
    "argv", [["training.batch_size=0"], ["training.engine=trl"], ["policy.file=a.yaml", "policy.rule=b"]]
)
def test_a_config_that_is_only_shown_is_checked(argv):
    assert recipes_of("train", "--cfg", "job", "training.batch_size=1") == []  # negative control
    with pytest.raises(ConfigError, match=argv[0].partition("=")[0]):
        recipes_of("train", "--cfg", "job", *argv)


def test_low_memory_has_the_default_s_optimiser_step():
    given = ("recipe=quickstart",)
    (usual,), (low,) = recipes_of("train", *given), recipes_of("train", *given, "training=low_memory")
    steps = {it.training.batch_size * it.training.gradient_accumulation_steps for it in (usual, low)}
    assert steps == {usual.training.batch_size}
    assert low.training.batch_size < usual.training.batch_size


def test_help_lists_the_keys_of_the_verb_as_they_would_be(capsys):
    assert recipes_of("train", "--help", "recipe=quickstart", "training.seed=7") == []
    train = capsys.readouterr().out
    assert all(text in train for text in ("  training.seed=7", "  base.source=smollm2", "  training=low_memory|quick"))
    assert "serving.port" not in train
    assert recipes_of("serve", "-h") == []
    serve = capsys.readouterr().out
    assert "  serving.port=8000" in serve
    assert "training.seed" not in serve


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("score", {"artifact": ["bundle", "battery"], "conversation": ["data"]}),
        ("serve", {"artifact": ["bundle", "battery"]}),
        ("report", {"logs.verdicts": ["verdicts"], "conversation": ["data"]}),
        ("train", {"conversation": []}),
    ],
)
def test_help_says_what_else_a_key_is_called(verb, names, capsys):
    assert recipes_of(verb, "--help") == []
    lines = {line.strip().partition("=")[0]: line for line in capsys.readouterr().out.splitlines()}
    for key, others in names.items():
        assert re.findall(r"\bor (\w+)=;", lines[key]) == others


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alora ", ["train", "score"]),
        ("alora train base=", ["base=smollm2", "base=qwen3_4b"]),
        ("alora check training.ba", ["training.batch_size="]),
        ("alora train recipe=quickstart training.seed=", ["training.seed=0"]),
        ("alora score conversation.json arti", []),
        ("alora train --h", ["--help", "--hydra-help"]),
        ("alora train base=smollm2 --mul", ["--multirun"]),
        ("alora train --nothing", []),
    ],
)
def test_the_shell_completes_verbs_then_keys_then_values(line, words, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    hydra_main.complete(["-sc", "query=bash"], ["train", "score"])
    printed = capsys.readouterr()
    found = printed.out.split()
    assert printed.err == ""
    assert set(words) <= set(found)
    assert bool(words) == bool(found)


def test_files_that_the_shell_is_offered_run_nothing(tmp_path, monkeypatch, capsys):
    """bash expands what it is offered, as Hydra's script gives it to ``compgen -W``."""
    monkeypatch.chdir(tmp_path)
    for name in ("$(touch ran)", "`touch ran`", "a$(touch${IFS}ran)", "<(touch ran)", "train.jsonl", "änd 2.csv"):
        (tmp_path / name).touch()
    monkeypatch.setenv("COMP_LINE", "alora train data.train=./")
    hydra_main.complete(["-sc", "query=bash"], ["train"])
    offered = capsys.readouterr().out
    assert {"data.train=./train.jsonl", "data.train=./änd", "2.csv"} <= set(offered.split())
    subprocess.run(["bash", "-c", 'compgen -W "$1"', "-", offered], check=True, capture_output=True)
    assert not (tmp_path / "ran").exists()


def test_completion_is_installed_for_alora_alone(capsys):
    hydra_main.complete(["-sc", "install=bash"], [])
    assert capsys.readouterr().out.rstrip().endswith("-F hydra_bash_completion alora")
    with pytest.raises(ConfigError, match=r"install=csh: No completion plugin for 'csh'"):
        hydra_main.complete(["-sc", "install=csh"], [])


def test_one_recipe_needs_no_command_line_of_hydra(monkeypatch):
    def used(**_: object) -> None:
        raise AssertionError("hydra.main")

    monkeypatch.setattr("hydra.main", used)
    assert recipe_of("doctor", "training.seed=3").training.seed == 3
    with pytest.raises(AssertionError, match=r"hydra\.main"):  # negative control
        recipe_of("doctor", "--cfg", "job")


def test_settings_of_hydra_that_do_nothing_are_remarked_on(here):
    notes: list[str] = []
    recipes_of("doctor", "hydra.job.chdir=true", "hydra.searchpath=[]", notes=notes)
    assert notes == ["hydra.job.chdir=true: what is set of Hydra counts in a sweep (-m)"]


def test_a_search_path_of_hydra_s_own_brings_groups(here):
    (here / "extra/team").mkdir(parents=True)
    (here / "extra/team/ours.yaml").write_text("# @package _global_\nname: ours\n")
    assert recipe_of("doctor", f"hydra.searchpath=[file://{here}/extra]", "+team=ours").name == "ours"
    with pytest.raises(ConfigError, match="unknown key 'team'"):
        recipe_of("doctor", "+team=ours")


def test_the_surroundings_are_put_back(monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    argv = list(sys.argv)
    recipe_of("doctor")
    with pytest.raises(ConfigError):
        recipe_of("doctor", "+typo=1")
    assert sys.argv == argv
    assert "HYDRA_FULL_ERROR" not in os.environ


@pytest.fixture
def conf(here) -> list[str]:
    """A user's own groups, beside folders of the same names that Hydra never looks into."""
    files = {
        "conf/team/data/y.yaml": "columns: {label: label}\n",
        "conf/team/data/z.yaml": "columns: {label: other, id: key}\n",
        "conf/team/eval/x.yaml": "target: recall\n",
        "conf/data/floats.yaml": 'label_map: {"1.0": violation, "v1.0": ok}\n',
        "conf/site/a.yaml": "# @package _global_\ndata: {columns: {label: label}}\nstrict: true\n",
        "conf/evaluation/ours.yaml": "target: recall\nbootstrap: 3\n",
        "conf/recipe/ours.yaml": "# @package _global_\nevaluation: {target: fpr, target_value: 0.05}\nstrict: false\n",
        "conf/mine.yaml": "defaults: [config, _self_]\ndata: {columns: {label: label}}\n",
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


def test_a_primary_config_that_is_named_counts_and_a_recipe_that_only_lies_there_does_not(conf, here):
    for name in ("mine", "mine.yaml"):
        (recipe,) = recipes_of("evaluate", *conf, "--config-name", name)
        assert recipe.named == {"data.columns.label"}
    (here / "own").mkdir()
    (here / "own/config.yaml").write_text("defaults: [schema, _self_]\nstrict: false\n")
    (recipe,) = recipes_of("evaluate", "artifact=artifact", "--config-path", str(here / "own"))
    assert recipe.named == {"strict"}
    (here / "recipe.yaml").write_text("strict: true\n")
    (recipe,) = recipes_of("evaluate", "artifact=artifact")
    assert (recipe.strict, recipe.given, recipe.named) == (False, {"artifact"}, set())
    (recipe,) = recipes_of("evaluate", "artifact=artifact", "recipe=./recipe.yaml")
    assert recipe.named == {"strict"}


@pytest.mark.parametrize("more", [[], ["hydra.job.chdir=true"]])
def test_a_job_in_another_folder_knows_its_options(conf, here, more):
    given = ["artifact=artifact", "hydra.searchpath=[file://conf]", "+data=floats", "output=a,b", *more]
    for job in recipes_of("evaluate", "-m", *given):
        assert job.given == {"artifact", "data.label_map", "output"}


@pytest.mark.parametrize("choice", ["evaluation.target=recall", "+team/eval@evaluation=x"])
def test_a_target_with_the_recipes_own_value_for_another_is_refused(conf, choice):
    with pytest.raises(ConfigError, match=r"would be fitted with evaluation.target_value=0.05"):
        recipes_of("recalibrate", *conf, "recipe=ours", choice)
    (recipe,) = recipes_of("recalibrate", *conf, "recipe=ours", "evaluation=high_recall")
    assert (recipe.evaluation.target, recipe.evaluation.target_value) == ("recall", None)
    recipes_of("recalibrate", *conf, "recipe=ours", "evaluation.target=fpr")  # the recipe's own
    recipes_of("recalibrate", *conf, "recipe=ours", "evaluation.target_value=0.9", choice)


@pytest.mark.parametrize(
    ("override", "label", "labels"),
    [("data.columns.labels=ann", "label", "ann"), ("data.columns.label=x", "x", "labels"), ("strict=true", "l", "ls")],
)
def test_of_label_and_labels_the_one_on_the_command_line_hides_the_recipes_other_one(here, override, label, labels):
    (here / "r.yaml").write_text("data: {columns: {label: l, labels: ls}}\n")
    columns = recipe_of("doctor", "recipe=r.yaml", override).data.columns
    assert (columns.label, columns.labels) == (label, labels)


def test_a_path_is_no_option_whatever_lies_there(here):
    (here / "run.yaml").write_text("name: another\n")
    (here / "artifact").mkdir()
    (recipe,) = recipes_of("evaluate", "artifact=artifact", f"run_dir={here / 'run'}")
    assert (recipe.given, recipe.run_dir) == ({"artifact", "run_dir"}, str(here / "run"))
