"""What Hydra makes of a command line, and what alora makes of it by itself, are the same settings."""

import contextlib
from dataclasses import asdict
from pathlib import Path

import hydra
import pytest
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from alora.config import hydra_main
from alora.config.arguments import read_arguments
from alora.config.compose import compose, load_recipe
from alora.config.fill import fill, fresh
from alora.config.paths import configs_folder
from alora.config.schema import Recipe
from tests.integration.config.test_compose import recipes_of

# Hydra's own idiom, which both read.
RECIPE = """\
# @package _global_
defaults:
  - override /base: qwen3_4b
  - override /adapter: lora
name: seed_${training.seed}
policy: {title: T, rule: R, labels: {bad: "Yes", good: "No"}}
data: {train: rows.jsonl, label_map: {a: bad}}
"""
LINES = [
    "",
    "training.seed=3 base.dtype=bfloat16",
    "base=qwen3_4b adapter=lora adapter.rank=4",
    "training=low_memory evaluation=high_recall tracking=wandb tracking.tags=[a,b]",
    "bench=gpu bench.serving.turns=2",
    "++training.seed=4 +policy.labels.bad=Yes",
    "data={columns: {label: x}, test: null}|policy.title='a, b'",
    "name=n_${training.seed} training.learning_rate=1e-3",
    "recipe=ours",
    "recipe=ours base=smollm2 training=quick training.epochs=2",
    "recipe=ours ++data.label_map.b=good",
    "recipe=ours +team=mine",
]


@pytest.fixture
def conf(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name, text in {"recipe/ours": RECIPE, "team/mine": "# @package _global_\nstrict: true\n"}.items():
        file = tmp_path / f"conf/{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    Path("rows.jsonl").touch()
    return [f"hydra.searchpath=[file://{tmp_path}/conf]"]


def words(line: str) -> list[str]:
    return line.split("|") if "|" in line else line.split()


@pytest.mark.parametrize("line", LINES)
def test_the_settings_are_hydras(line, conf):
    given = [*conf, *words(line)]
    ours = compose(read_arguments("doctor", given, Path.cwd()), given).settings
    ConfigStore.instance().store(name="schema", node=asdict(Recipe()))
    with hydra.initialize_config_dir(str(configs_folder()), version_base="1.3"):
        theirs = fresh()
        assert list(fill(theirs, OmegaConf.to_container(hydra.compose("config", given)), in_file=False)) == []
    assert OmegaConf.to_container(ours) == OmegaConf.to_container(theirs)


@pytest.mark.parametrize("line", LINES)
def test_shown_swept_and_run_they_are_the_same(line, conf, capsys):
    given = [*conf, *words(line)]
    with contextlib.suppress(SystemExit):
        assert load_recipe("doctor", [*given, "--cfg", "job"], print) is None
    shown = yaml.safe_load(capsys.readouterr().out)
    composed = compose(read_arguments("doctor", given, Path.cwd()), given)
    assert shown == OmegaConf.to_container(composed.settings)
    (run,) = recipes_of("doctor", *given)
    (first, _) = recipes_of("doctor", "-m", *given, "plan.tokens=10,20")
    first.plan.tokens = run.plan.tokens
    assert first == run
    assert first.given == run.given | {"plan.tokens"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alora ", ["train", "score"]),
        ("alora train base=", ["base=smollm2", "base=qwen3_4b"]),
        ("alora score conversation.json arti", []),
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
