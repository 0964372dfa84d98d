"""Recipes and run folders that came from somewhere else: they set settings, and nothing happens that they ask for."""

from pathlib import Path

import pytest
import yaml

from alora.cli import main, report
from alora.config.saved import read_saved_recipe, save_recipe
from alora.config.schema import Recipe
from alora.config.sweep import run_sweep
from alora.errors import ConfigError
from tests.integration.config.test_compose import recipe_of

TOUCH = {"_target_": "pathlib.Path.touch", "self": "OWNED"}
SAVE = {"_target_": "numpy.savetxt", "fname": "OWNED", "X": [1]}
COPY = {"_target_": "shutil.copyfile", "src": "mine.yaml", "dst": "OWNED"}
CALLBACK = "hydra: {callbacks: {x: {_target_: pathlib.Path.touch, self: OWNED}}}"
TARGET = "_target_: pathlib.Path.touch\nself: OWNED"
HOSTILE = {
    "touch": ({"hydra": {"callbacks": {"x": TOUCH}}}, "hydra.callbacks.x._target_"),
    "save": ({"hydra": {"callbacks": {"x": SAVE}}}, "hydra.callbacks.x._target_"),
    "copy": ({"hydra": {"callbacks": {"x": COPY}}}, "hydra.callbacks.x._target_"),
    "target": ({"hydra": {"launcher": TOUCH}}, "hydra.launcher._target_"),
    "inside": ({"hydra": {"launcher": {"n_jobs": TOUCH}}}, "hydra.launcher.n_jobs._target_"),
    "shell": ({"hydra": {"launcher": {"setup": ["touch OWNED"]}}}, "hydra.launcher.setup"),
    "shell in a word": ({"hydra": {"launcher": {"partition": "gpu\ntouch OWNED"}}}, "hydra.launcher.partition"),
    "logging": (
        {"hydra": {"job_logging": {"handlers": {"()": "os.system"}}}},
        "hydra.job_logging.handlers.()",
    ),
    "a place": ({"hydra": {"run": {"dir": "OWNED"}}}, "hydra.run.dir"),
    "another place": ({"hydra": {"output_subdir": "OWNED"}}, "hydra.output_subdir"),
    "jobs": ({"hydra": {"sweeper": {"params": {"base.trust_remote_code": "true"}}}}, "hydra.sweeper.params"),
    "a copy of the environment": ({"hydra": {"job": {"env_copy": ["SECRET"]}}}, "hydra.job.env_copy"),
    "a change of the environment": ({"hydra": {"job": {"env_set": {"PATH": "."}}}}, "hydra.job.env_set.PATH"),
    "a whole section": ({"hydra": "${name}"}, "hydra: "),
    "the environment": ({"name": "${oc.env:SECRET}"}, "name: a file refers to settings alone"),
    "nested": ({"name": "${oc.${engine}:SECRET}"}, "name: a file refers to settings alone"),
    "behind an escaped one": ({"name": "\\${a}${oc.env:SECRET}"}, "name: a file refers to settings alone"),
    "in a list": ({"compare": {"arms": ["${oc.env:SECRET}"]}}, "compare.arms: a file refers"),
    "trust": ({"base": {"trust_remote_code": True}}, "base.trust_remote_code is taken from the command line alone"),
    "trust by reference": ({"base": {"trust_remote_code": "${strict}"}}, "base.trust_remote_code is taken"),
    "options of vLLM": ({"serving": {"arguments": ["--trust-remote-code"]}}, "serving.arguments is taken from"),
    "whom a server answers": ({"serving": {"host": "0.0.0.0"}}, "serving.host is taken from the command line alone"),
    "a public upload": ({"export": {"private": False}}, "export.private is taken from the command line alone"),
    "a judge": ({"judge": {"url": "https://far.example/v1"}}, "judge.url is taken"),
    "a key": ({"judge": {"api_key_env": "SECRET"}}, "judge.api_key_env is taken"),
    "a server": ({"scorer": "http://far.example"}, "scorer is taken"),
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
    values, words = HOSTILE[name]
    (here / "mine.yaml").write_text(yaml.safe_dump(values))
    refused(capsys, f"mine.yaml: {words}", "check", "recipe=mine.yaml")


@pytest.mark.parametrize(
    ("file", "text", "argv"),
    [
        ("recipe.yaml", CALLBACK, ()),
        (
            "run.yaml",
            CALLBACK,
            ("-cd", ".", "-cn", "run"),
        ),
        ("run.yaml", "hydra: {searchpath: [pkg://antigravity]}", ("-cd", ".", "-cn", "run")),
        ("run.yaml", "hydra: ${x}\nx: {searchpath: [pkg://antigravity]}", ("-cd", ".", "-cn", "run")),
        (
            "recipe/a.yaml",
            f"# @package hydra.callbacks.x\n{TARGET}",
            ("-cd", ".", "recipe=a"),
        ),
        (
            "policy/a.yaml",
            TARGET,
            ("-cd", ".", "+policy@hydra.callbacks.x=a"),
        ),
        ("hydra/callbacks/a.yaml", "x: {_target_: pathlib.Path.touch, self: OWNED}", ("-cd", ".", "hydra/callbacks=a")),
        ("hydra/launcher/a.yaml", TARGET, ("-cd", ".", "-m", "hydra/launcher=a")),
    ],
    ids=["unnamed", "primary", "search path", "reference", "package", "package of a choice", "callback", "launcher"],
)
def test_wherever_it_stands(here, capsys, file, text, argv):
    (here / file).parent.mkdir(exist_ok=True, parents=True)
    (here / file).write_text(text)
    refused(capsys, "a file may set the size of a launcher's jobs", "check", *argv)


def test_a_defaults_list_does_not_bring_a_package(here, capsys):
    (here / "recipe").mkdir()
    (here / "recipe/a.yaml").write_text("# @package _global_\ndefaults: [b@hydra.callbacks.x]\n")
    (here / "recipe/b.yaml").write_text("_target_: pathlib.Path.touch\nself: OWNED\n")
    refused(capsys, "b.yaml: ", "check", "-cd", ".", "recipe=a")


def test_what_recipes_are_for_still_works(here):
    (here / "mine.yaml").write_text(
        "name: seed_${training.seed}_${now:%Y}\npolicy: {title: Text, rule: 'costs \\${x}'}\n"
        "hydra: {launcher: {n_jobs: 3}}\n"
    )
    recipe = recipe_of("doctor", "recipe=mine.yaml", "hydra/launcher=joblib", "base.trust_remote_code=true")
    assert recipe.name.startswith("seed_0_20")
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


def labels(count: int) -> dict[str, str]:
    """References that double the text at each step."""
    return {f"l{i}": f"${{policy.labels.l{i + 1}}}" * 2 for i in range(count)} | {f"l{count}": "x"}


BOMBS = {
    "references": yaml.safe_dump({"policy": {"labels": labels(60)}}),
    "references in a list": yaml.safe_dump({"policies": [f"${{policies.{i + 1}}}" * 2 for i in range(60)] + ["x"]}),
}


@pytest.mark.parametrize("argv", [("recipe=bomb.yaml",), ("-cd", ".", "-cn", "bomb")])
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(here, capsys, name, argv):
    (here / "bomb.yaml").write_text(BOMBS[name])
    assert main(["check", *argv]) == 2
    errors = capsys.readouterr().err
    assert "too large" in errors, errors
    assert len(errors) < 1000


def test_a_recipe_that_includes_itself(here, capsys):
    (here / "recipe").mkdir()
    (here / "recipe/a.yaml").write_text("# @package _global_\ndefaults: [a]\n")
    refused(capsys, "includes itself", "check", "-cd", ".", "recipe=a")


def test_a_recipe_that_links_to_itself(here, capsys):
    (here / "a.yaml").symlink_to("a.yaml")
    refused(capsys, "recipe=a.yaml: there is no file", "check", "recipe=a.yaml")


def test_recipes_that_include_each_other_without_end(here, capsys):
    """Two inclusions at each of 24 steps would be 16 million."""
    (here / "recipe").mkdir()
    for i in range(24):
        (here / f"recipe/r{i}.yaml").write_text(f"# @package _global_\ndefaults: [r{i + 1}@x, r{i + 1}@y]\n")
    (here / "recipe/r24.yaml").write_text("name: x\n")
    refused(capsys, "recipes include each other more than 1000 times", "check", "-cd", ".", "recipe=r0")


@pytest.mark.parametrize(
    "defaults",
    [
        ["../../elsewhere@data.label_map"],
        [{"/training@data.label_map": "../../elsewhere"}],
        [{"/training": "${oc.env:SECRET}"}],
        7,
        {"training": "quick"},
        [[1]],
    ],
)
def test_a_recipe_names_options_alone(defaults, here, capsys):
    (here / "elsewhere.yaml").write_text("ok: hunter2\n")
    (here / "below/deep").mkdir(parents=True)
    (here / "below/deep/mine.yaml").write_text(yaml.safe_dump({"defaults": defaults}))
    assert main(["check", "recipe=below/deep/mine.yaml"]) == 2
    errors = capsys.readouterr().err
    assert "mine.yaml: defaults" in errors
    assert "hunter2" not in errors


def test_jobs_of_a_recipe_do_not_resolve_what_it_escaped(here, capsys):
    (here / "mine.yaml").write_text(
        "run_dir: runs/\\${oc.env:SECRET}\npolicy: {title: t, rule: r}\ndata: {train: rows}\n"
    )
    (here / "rows").write_text("")
    made = []
    argv = ["-m", "recipe=mine.yaml", "policy.id=a,b"]
    records = run_sweep(
        "train", argv, lambda recipe: (0, made.append(recipe.run_dir), False), report, lambda text: None
    )
    assert [record.exit_code for record in records] == [0, 0]
    assert made == [str(here / "runs/${oc.env:SECRET}" / name) for name in "ab"]


@pytest.mark.parametrize(
    "override",
    ["plan.target_ms=${oc.env:SECRET}", "plan.device=${oc.env:SECRET}", "plan.record=x${oc.env:SECRET}",
     "base.template_kwargs={a: '${oc.env:SECRET}'}", "bench.prefixes=[5,'${oc.env:SECRET}']"],
)  # fmt: skip
def test_what_the_command_line_takes_from_the_environment_is_shown_as_written(here, capsys, override):
    refused(capsys, "${oc.env:SECRET}", "plan", override)
