"""Recipes and run folders that came from somewhere else: they set settings, and nothing happens that they ask for."""

from pathlib import Path

import pytest

from alora.cli import main, report
from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import Recipe
from alora.config.sweep import run_sweep
from alora.errors import ConfigError
from tests.integration.config.test_compose import recipe_of

TARGET = "_target_: pathlib.Path.touch\nself: OWNED\n"
CALLBACK = "name: x\nhydra: {callbacks: {x: {_target_: pathlib.Path.touch, self: OWNED}}}\n"
HOSTILE = {  # the file, the line that the message names, and what it says
    "a callback": (CALLBACK, 2, "a recipe sets nothing of Hydra; give hydra.callbacks.x._target_=..."),
    "a launcher": (
        "hydra: {launcher: {setup: [touch OWNED]}}",
        1,
        "a recipe sets nothing of Hydra; give hydra.launcher.setup=...",
    ),
    "a call": (f"policy:\n  labels:\n    {TARGET.splitlines()[0]}\n", 3, "_target_ calls code"),
    "a package": (f"# @package hydra.callbacks.x\n{TARGET}", 2, "_target_ calls code"),
    "another package": ("# @package data\ntrain: x\n", None, "'@package data' is Hydra's"),
    "the environment": (
        "strict: true\nname: ${oc.env:SECRET}\n",
        2,
        "name: a file refers to settings alone, as ${name}",
    ),
    "the date": ("name: ${now:%Y}", 1, "name: a file refers to settings alone"),
    "in a list": ("compare: {arms: ['${oc.env:SECRET}']}", 1, "compare.arms: a file refers"),
    "trust": ("base:\n  trust_remote_code: true\n", 2, "base.trust_remote_code is taken from the command line alone"),
    "options of vLLM": ("serving: {arguments: [--trust-remote-code]}", 1, "serving.arguments is taken from"),
    "whom a server answers": ("serving: {host: 0.0.0.0}", 1, "serving.host is taken from the command line alone"),
    "a public upload": ("export: {private: false}", 1, "export.private is taken from the command line alone"),
    "a judge": ("judge: {url: 'https://far.example/v1'}", 1, "judge.url is taken"),
    "a key": ("judge: {api_key_env: SECRET}", 1, "judge.api_key_env is taken"),
    "a server": ("scorer: http://far.example", 1, "scorer is taken"),
    "an option that leads out": ("base: ../../elsewhere", 1, "base=../../elsewhere: there is no such option"),
    "a launcher of Hydra's": ("defaults: [{override /hydra/launcher: ray_aws}]", 1, "defaults chooses options"),
    "a file": ("defaults: [../../elsewhere]", 1, "defaults chooses options"),
    "no option": ("defaults: [{training: '${oc.env:SECRET}'}]", 1, "defaults chooses options"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALORA_DEBUG", raising=False)
    monkeypatch.setenv("SECRET", "hunter2")
    return tmp_path


def refused(capsys, words: str, *argv: str) -> None:
    before = sorted(path.name for path in Path.cwd().rglob("*"))
    assert main(argv) == 2
    output, errors = capsys.readouterr()
    assert words in errors
    assert "hunter2" not in output + errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in Path.cwd().rglob("*")) == before


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_recipe_asks_for_does_not_happen(here, capsys, name):
    text, line, words = HOSTILE[name]
    (here / "mine.yaml").write_text(text)
    where = "" if name == "an option that leads out" else "mine.yaml: " if line is None else f"mine.yaml:{line}: "
    refused(capsys, f"{where}{words}", "check", "recipe=mine.yaml")


@pytest.mark.parametrize(
    ("file", "argv"),
    [
        ("recipe.yaml", ()),
        ("recipe/a.yaml", ("-cd", ".", "recipe=a")),
        ("recipe/a.yaml", ("-cd", ".", "-m", "recipe=a", "training.seed=1,2")),
        ("policy/a.yaml", ("-cd", ".", "policy=a")),
        ("policy/a.yaml", ("-cd", ".", "--cfg", "job", "policy=a")),
        ("team/a.yaml", ("hydra.searchpath=[.]", "+team=a")),
    ],
)
def test_wherever_it_stands(here, capsys, file, argv):
    (here / file).parent.mkdir(exist_ok=True, parents=True)
    (here / file).write_text(CALLBACK)
    refused(capsys, f"{Path(file).name}:2: a recipe sets nothing of Hydra", "check", *argv)


def test_what_hydra_runs_does_not_come_from_a_users_folder(here):
    (here / "hydra/launcher").mkdir(parents=True)
    (here / "hydra/launcher/a.yaml").write_text(TARGET)
    argv = ["-m", "-cd", ".", "plan.rate=1,2", "output=${plan.rate}", "hydra/launcher=a"]
    with pytest.raises(ConfigError, match="hydra/launcher=a is not installed"):
        run_sweep("plan", argv, pytest.fail, report, print)
    assert not (here / "OWNED").exists()


def test_what_recipes_are_for_still_works(here):
    (here / "mine.yaml").write_text("name: seed_${training.seed}\npolicy: {title: Text, rule: 'costs \\${x}'}\n")
    recipe = recipe_of("doctor", "recipe=mine.yaml", "base.trust_remote_code=true")
    assert recipe.name == "seed_0"
    assert recipe.policy.rule == "costs ${x}"
    assert recipe.base.trust_remote_code


def test_the_command_line_is_its_users_own():
    recipe = recipe_of("doctor", "name=${oc.env:SECRET}", "judge.url=https://h/v1", "judge.model=m", "hydra.run.dir=.")
    assert recipe.name == "hunter2"
    assert recipe.judge.url == "https://h/v1"


def test_a_run_keeps_no_trust_and_gives_none(here):
    recipe = Recipe()
    recipe.base.trust_remote_code, recipe.serving.arguments, recipe.scorer = True, ["--api-key", "x"], "vllm"
    save_recipe(recipe, here / "run.yaml", {})
    text = (here / "run.yaml").read_text()
    assert "trust_remote_code: false" in text
    assert "--api-key" not in text
    (here / "run.yaml").write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))
    saved = read_saved_recipe(here / "run.yaml")
    assert not saved.base.trust_remote_code
    assert saved.scorer == "vllm"


def test_a_run_refers_to_no_environment(here):
    save_recipe(Recipe(), here / "run.yaml", {})
    text = (here / "run.yaml").read_text().replace("name: run\n", "name: ${oc.env:SECRET}\n")
    (here / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match="name: a file refers to settings alone"):
        read_saved_recipe(here / "run.yaml")
