"""The encoder of a comparison on a toy model: fetched once, fine-tuned, and asked about rows that it did not learn."""

from dataclasses import replace

import numpy as np
import pytest

from alora.base.load import load_base
from alora.config.schema import BaseSettings, CompareSettings, DataSettings, PolicySettings, Recipe
from alora.lab.compare import encoder
from alora.lab.compare.methods import run_method
from alora.lab.compare.task import MethodRun, Workbench, read_task
from alora.prompt.render import Renderer
from tests.integration.lab.compare.places import make_place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def bench(place):
    """Forty rows in five folds, on the toy base, which is the encoder as well."""
    source = str(place / "base")
    recipe = Recipe(
        base=BaseSettings(source=source),
        policy=PolicySettings(file=str(place / "policies.yaml")),
        policies=["red"],
        data=DataSettings(train=str(place / "train.jsonl"), test=str(place / "test.jsonl")),
        compare=CompareSettings(encoder=source),
    )
    base = load_base(recipe.base)
    return Workbench(read_task(recipe), base, Renderer(base.tokenizer, recipe.prompt))


def scored(bench, home, arm="encoder"):
    scores, left_out = run_method(bench, MethodRun(arm, 0 if arm == "encoder" else None), home)
    assert left_out == {}
    return scores["red"]


def turned(bench, fold):
    other = {"violation": "ok", "ok": "violation"}
    rows = [
        replace(row, labels={"red": other[row.labels["red"]]}) if row.folds["red"] == fold else row
        for row in bench.task.splits.train
    ]
    return replace(bench, task=replace(bench.task, splits=replace(bench.task.splits, train=tuple(rows))))


def test_a_word_that_decides_is_learnt(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "RATE", 3e-3)  # for random weights
    for arm in ("encoder", "encoder_frozen"):
        found = scored(bench, tmp_path, arm)
        margin_N = found.test.logits_NL[:, 0] - found.test.logits_NL[:, 1]
        assert margin_N[found.test.positive_N].min() > margin_N[~found.test.positive_N].max(), arm
        assert len(found.validation.ids) == 40


def test_no_fold_answers_about_rows_that_it_learnt_from(bench, tmp_path, monkeypatch):
    """Planted: the labels of fold 0 turned around change every answer but those about fold 0."""
    monkeypatch.setattr(encoder, "EPOCHS", 1)
    before, after = scored(bench, tmp_path), scored(turned(bench, 0), tmp_path)
    own_N = np.array([row.folds["red"] == 0 for row in bench.task.splits.train])
    assert (before.validation.logits_NL[own_N] == after.validation.logits_NL[own_N]).all()
    assert (before.validation.logits_NL[~own_N] != after.validation.logits_NL[~own_N]).any(axis=1).all()
    assert (before.test.logits_NL != after.test.logits_NL).any()
