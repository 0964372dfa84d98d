"""Training's guards, through the whole benchmark: a fault planted in a system withholds its ratio."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alora.adapter.folder import AdapterSpec
from alora.config.schema import BaseSettings, BenchSettings
from alora.lab.bench import harness
from alora.lab.bench.material import INVOCATION, draw_batch, over_vocabulary, random_adapter
from alora.lab.bench.objections import GRADIENT_TOLERANCE, unequal_work
from alora.lab.bench.record import record_json
from alora.lab.bench.reference import peft_model
from alora.lab.bench.run import run_bench
from alora.lab.bench.shapes import SHAPES, random_base
from alora.lab.bench.trainers import BATCH, PackedTrainer, PeftTrainer, TrlTrainer, difference
from alora.lab.bench.trials import AA, Result, Run, Trial
from alora.training.trainer import SharedPrefixTrainer

SHAPE = SHAPES["toy"]
PREFIX, SUFFIX, POLICIES = 40, 9, 5
TOLERANCE = GRADIENT_TOLERANCE[False]
SETTINGS = BenchSettings(
    workload="training", shape="toy", prefixes=[PREFIX], suffix=SUFFIX, policies=[1, POLICIES], baselines=["peft"],
    rounds=2, rank=4, own_rows=0,
)  # fmt: skip


@pytest.fixture
def told(monkeypatch):
    """One second a step, whatever it took; the A/A run's may be set to another. The order is that of the turns."""
    times, stock = {}, harness.Harness.measure

    def measure(self, turns, stages, cells):
        stock(self, turns, stages, 4)
        for cell in stages:
            cell.trials[:] = [
                replace(trial, run=replace(trial.run, seconds=times.get(trial.system, 1.0))) for trial in cell.trials
            ]

    monkeypatch.setattr(harness.Harness, "measure", measure)
    return times


def refused():
    record = run_bench(SETTINGS, BaseSettings(), torch.device("cpu"), torch.float32)
    (cell,) = record.cells
    assert json.loads(record_json(record))["cells"][0]["ratios"]  # a fault must not keep the run from being written
    assert all((ratio.ratio is None) == bool(ratio.refused) for ratio in cell.ratios)
    return {int(ratio.ours.partition("=")[2]): [one.code for one in ratio.refused] for ratio in cell.ratios}


def test_sound_systems_get_their_ratios(told):
    (cell,) = run_bench(SETTINGS, BaseSettings(), torch.device("cpu"), torch.float32).cells
    assert [(one.ours, one.ratio.value, one.refused) for one in cell.ratios] == [
        ("packed P=1", BATCH, []), (f"packed P={POLICIES}", BATCH * POLICIES, []),
    ]  # fmt: skip
    assert all(one.arithmetic > 1 for one in cell.ratios)
    assert cell.agreement[0].worst <= TOLERANCE


def test_a_step_that_runs_the_first_and_the_last_policy_alone(told, monkeypatch):
    """Both are what gradients are compared of."""

    def step(self):
        batch = self.batch
        some = [at for at, pair in enumerate(batch.pairs) if pair.policy in (0, batch.pairs[-1].policy)]
        parts = {name: tuple(getattr(batch, name)[at] for at in some) for name in ("pairs", "labels", "weights")}
        self._trainer.training_step(self._model, {"batch": replace(batch, **parts)})

    monkeypatch.setattr(PackedTrainer, "step", step)
    assert refused() == {1: [], POLICIES: ["UNEQUAL_WORK", "NO_GRADIENT"]}


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_a_policy_between_whose_gradient_is_lost(told, monkeypatch, factor):
    """All pairs run and all losses are right, but one in the middle trains nothing, or nonsense."""
    stock = SharedPrefixTrainer._answers

    def answers(self, batch, part):
        found = stock(self, batch, part)
        if found.logits_nL.requires_grad:
            scale_n = found.logits_nL.new_tensor([factor if batch.pairs[at].policy == 2 else 1.0 for at in part])
            found.logits_nL.register_hook(lambda grad_nL: grad_nL * scale_n[:, None])
        return found

    monkeypatch.setattr(SharedPrefixTrainer, "_answers", answers)
    assert refused() == {1: [], POLICIES: ["NO_GRADIENT"]}


def test_a_baseline_that_computes_something_else(told, monkeypatch):
    stock = PeftTrainer.train_policy

    def late(self, adapter, policy):
        stock(self, adapter, policy)
        self._inputs["alora_offsets"] = [self._inputs["alora_offsets"][0] - 1]

    monkeypatch.setattr(PeftTrainer, "train_policy", late)
    assert refused() == {1: ["UNEQUAL_GRADIENTS"], POLICIES: ["UNEQUAL_GRADIENTS"]}


def test_a_baseline_of_other_work(told, monkeypatch):
    stock = PeftTrainer.pieces
    monkeypatch.setattr(PeftTrainer, "pieces", lambda self: [replace(one, digest="other") for one in stock(self)])
    assert refused() == {1: ["UNEQUAL_WORK"], POLICIES: ["UNEQUAL_WORK"]}


def test_an_a_a_run_that_is_off(told):
    told[AA] = 1.3
    assert refused() == {1: ["BIASED_AA"], POLICIES: ["BIASED_AA"]}


@pytest.fixture(scope="module")
def base():
    return random_base(SHAPE, torch.device("cpu"), torch.float32, seed=0)


@pytest.fixture(scope="module")
def adapters(base):
    spec = AdapterSpec(4, 8.0, tuple(sorted(SHAPE.linears)), INVOCATION)
    return [random_adapter(spec, base, seed=100 * policy) for policy in range(3)]


@pytest.fixture
def prompts():
    return draw_batch(SHAPE.vocab, PREFIX, SUFFIX, 3, seed=0)


@pytest.fixture
def packed(base, adapters, prompts, tmp_path):
    trainer = PackedTrainer(base, adapters, prompts, tmp_path)
    yield trainer
    trainer.close()


def made(kind, base, adapter, prompts):
    return kind(peft_model(base, adapter.spec), adapter, prompts, Path("unused"))


def worked(trainer):
    trainer.clear()
    trainer.step()
    return [Trial("one", 0, 0, Run.of(1.0, 1.0, list(map(Result, trainer.pieces()))))]


@pytest.mark.parametrize("kind", [PeftTrainer, TrlTrainer])
def test_every_baseline_runs_a_pair_of_ours(base, adapters, prompts, packed, kind):
    assert unequal_work(worked(packed), worked(made(kind, base, adapters[0], prompts)), "one") == []


def test_trl_agrees_with_the_vocabulary_objective(base, adapters, prompts, tmp_path):
    one = replace(prompts, pairs=prompts.pairs[:1], labels=prompts.labels[:1], weights=(1.0,))
    wide = PackedTrainer(base, adapters[:1], over_vocabulary(one, SHAPE.vocab), tmp_path)
    (ours,), _ = wide.outcomes([0])
    wide.close()
    assert difference(ours, made(TrlTrainer, base, adapters[0], one).outcome()) <= TOLERANCE


@pytest.mark.parametrize("scale", [1.0 + 1e-3, 0.0, float("nan")])
def test_one_wrong_gradient_matrix_is_found(base, adapters, prompts, packed, scale):
    theirs, ours = made(PeftTrainer, base, adapters[0], prompts).outcome(), packed.outcomes([0])[0][0]
    name = sorted(ours)[3]
    a, b = ours[name]
    assert difference({**ours, name: (a, scale * b)}, theirs) > TOLERANCE
