"""Composing inside an app that runs on Hydra itself, and in several threads of one process."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import hydra
import pytest
from hydra import version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton

import alora
from alora.config.compose import load_recipe
from alora.config.guard import guarded_hydra
from alora.errors import ConfigError
from tests.integration.config.test_compose import recipes_of


@dataclass
class OfTheApp:
    name: str = "the app's"
    color: str = "red"


@pytest.fixture(autouse=True)
def fresh_hydra(monkeypatch, tmp_path):
    monkeypatch.setattr(Singleton, "_instances", dict(Singleton._instances))
    monkeypatch.chdir(tmp_path)


def test_an_app_on_hydra_trains_and_goes_on_as_before(monkeypatch, tmp_path):
    arrived, seen = [], []
    monkeypatch.setattr("alora.api.run", lambda recipe: arrived.append(recipe) or 0)
    monkeypatch.setattr(sys, "argv", ["app", "color=blue", f"hydra.run.dir={tmp_path}/out", "hydra.output_subdir=null"])
    own = ConfigStore()
    for group, name in ((None, "config"), (None, "schema"), ("base", "qwen3_4b"), ("recipe", "quickstart")):
        own.store(name, OfTheApp, group=group)

    def state() -> tuple:
        loader = GlobalHydra.instance().config_loader()
        return loader, HydraConfig.get(), version.getbase(), own.load("schema.yaml").node, ConfigStore.instance()

    @hydra.main(config_path=None, config_name="config", version_base="1.2")
    def app(config) -> None:
        before = state()
        alora.train("quickstart", base="qwen3_4b", name="mine")
        with pytest.raises(ConfigError, match="did you mean"):
            alora.train("quickstart", trainin={"seed": 1})
        assert state() == before
        assert state()[0] is before[0]
        seen.append((config.color, HydraConfig.get().runtime.output_dir))

    app()
    assert seen == [("blue", f"{tmp_path}/out")]
    assert [(recipe.name, recipe.base.source) for recipe in arrived] == [("mine", "Qwen/Qwen3-4B")]


def test_an_app_on_hydra_sweeps_in_its_process(tmp_path):
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.3"):
        before = GlobalHydra.instance().hydra
        assert [recipe.training.seed for recipe in recipes_of("doctor", "-m", "training.seed=3,4")] == [3, 4]
        assert GlobalHydra.instance().hydra is before is not None


def test_threads_get_the_recipes_that_each_asked_for():
    def composed(number: int) -> tuple[int, str, frozenset[str]]:
        recipe = load_recipe("doctor", [f"training.seed={number}", f"name=n{number}"], lambda _: None)
        assert recipe is not None
        return recipe.training.seed, recipe.name, recipe.given

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(composed, range(6)))
    assert found == [(number, f"n{number}", frozenset({"training.seed", "name"})) for number in range(6)]
    assert not GlobalHydra.instance().is_initialized()


def test_a_thread_that_composes_leaves_received_files_guarded(tmp_path: Path):
    received = tmp_path / "received.yaml"
    received.write_text("name: ${oc.env:HOME}\n")

    def refused(_: int) -> bool:
        recipes_of("doctor")
        with pytest.raises(ConfigError, match="refers to settings alone"):
            recipes_of("doctor", f"recipe={received}")
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(refused, range(6)))


def test_one_thread_may_compose_within_a_composition():
    with guarded_hydra():
        outer = Singleton._instances
        assert recipes_of("doctor", "training.seed=5")[0].training.seed == 5
        assert Singleton._instances is outer
