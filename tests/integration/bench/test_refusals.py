"""A cell asks its guards: a faulty arm, and a null arm that is off, cost it the ratio and are named as the reason.

Times are told, not taken, so that a ratio is a number whenever no guard objects.
"""

import copy
from dataclasses import replace

import pytest
import torch

from alora.bench import cell, scoring
from alora.bench.arms import PackedArm
from alora.bench.baselines import PeftArm
from alora.bench.training import run_training
from alora.config.schema import BenchSettings
from alora.prefix.scorer import Scorer
from alora.training.trainer import SplitTrainer

POLICIES = 5
SETTINGS = BenchSettings(
    shape="toy", prefixes=[40], suffixes=[9], policies=[1, POLICIES], baselines=["peft"], scoring_adapters=[],
    memory=False, rounds=2, rank=4,
)  # fmt: skip


@pytest.fixture(autouse=True)
def told_times(monkeypatch):
    """One second a step, whatever it took. The null arm's may be set to another."""
    times, measure = {}, cell.measure

    def told(*args, **kwargs):
        return [replace(sample, seconds=times.get(sample.arm, 1.0)) for sample in measure(*args, **kwargs)]

    monkeypatch.setattr(cell, "measure", told)
    monkeypatch.setattr(scoring, "measure", told)
    return times


def _run(settings=SETTINGS):
    return run_training(settings, torch.device("cpu"), torch.float32, progress=False)


def _entries():
    """By number of policies: the ratio, and why there is none."""
    return {entry["policies"]: entry for entry in _run()["cells"][0]["ratios"]}


def _refused_by_all(entries, reason):
    return all(entry["ratio"] is None and reason in " ".join(entry["refused"]) for entry in entries.values())


def test_sound_arms_get_their_ratios():
    entries = _entries()
    assert {policies: entry["ratio"]["median"] for policies, entry in entries.items()} == {1: 1.0, POLICIES: POLICIES}
    assert not any(entry["refused"] for entry in entries.values())


def test_a_step_that_runs_the_first_and_the_last_policy_alone(monkeypatch):
    """Both are what gradients are compared of."""

    def step(self):
        batch = self._batch
        some = sorted({0, len(batch.pairs) - 1})
        parts = {name: tuple(getattr(batch, name)[place] for place in some) for name in ("pairs", "labels", "weights")}
        self._trainer.training_step(self._model, {"batch": replace(batch, **parts)})

    monkeypatch.setattr(PackedArm, "step", step)
    entries = _entries()
    assert entries[1]["ratio"]["median"] == 1.0
    assert entries[POLICIES]["ratio"] is None
    assert entries[POLICIES]["refused"] == [
        f"ours ran 2 of its {POLICIES} pairs",
        f"{POLICIES - 2} of our {POLICIES} policies got no gradient, or one that is not finite",
    ]


def test_a_timed_step_that_runs_less_than_the_compared_one(monkeypatch):
    stock, calls = PackedArm.step, {}

    def step(self):
        calls[self.name] = calls.get(self.name, 0) + 1
        if calls[self.name] == 1:
            return stock(self)
        few = copy.copy(self)
        few._batch = replace(self._batch, pairs=self._batch.pairs[:1], labels=(0,), weights=(1.0,))
        return stock(few)

    monkeypatch.setattr(PackedArm, "step", step)
    entries = _entries()
    assert entries[1]["ratio"]["median"] == 1.0
    assert entries[POLICIES]["refused"] == [f"ours ran 1 of its {POLICIES} pairs"]


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_a_policy_between_whose_gradient_is_lost(monkeypatch, factor):
    """All pairs run and all losses are right, but one in the middle trains nothing, or nonsense."""
    stock = SplitTrainer._losses

    def losses(self, batch, part):
        found = stock(self, batch, part)
        scale = found.new_tensor([factor if batch.pairs[place].policy == 2 else 1.0 for place in part])
        found.register_hook(lambda grad: grad * scale)
        return found

    monkeypatch.setattr(SplitTrainer, "_losses", losses)
    entries = _entries()
    assert entries[1]["ratio"]["median"] == 1.0
    assert entries[POLICIES]["ratio"] is None
    assert f"1 of our {POLICIES} policies got no gradient" in entries[POLICIES]["refused"][-1]


def test_an_arm_that_computes_something_else(monkeypatch):
    stock = PeftArm.train_policy

    def late(self, adapter, policy):
        stock(self, adapter, policy)
        self._offsets = [self._offsets[0] - 1]

    monkeypatch.setattr(PeftArm, "train_policy", late)
    assert _refused_by_all(_entries(), "more than rounding explains")


def test_a_baseline_of_other_work(monkeypatch):
    stock = PeftArm.work
    monkeypatch.setattr(PeftArm, "work", lambda self: [replace(item, digest="other") for item in stock(self)])
    assert _refused_by_all(_entries(), "the baseline ran 1 pair(s) that ours did not")


def test_a_null_arm_that_is_off(told_times):
    told_times[cell.NULL] = 1.3
    assert _refused_by_all(_entries(), "null arm")


class TestScoring:
    SETTINGS = replace(SETTINGS, policies=[1], scoring_adapters=[2, 4], scoring_prefix=40, scoring_suffix=8)

    def _entries(self):
        return {entry["policies"]: entry for entry in _run(self.SETTINGS)["scoring"]["ratios"]}

    def test_sound_arms_get_their_ratios(self):
        assert {count: entry["ratio"]["median"] for count, entry in self._entries().items()} == {2: 2.0, 4: 4.0}

    def test_wrong_logits(self, monkeypatch):
        stock = Scorer.label_logits
        monkeypatch.setattr(Scorer, "label_logits", lambda *args: [1.01 * row for row in stock(*args)])
        assert _refused_by_all(self._entries(), "more than rounding explains")

    def test_suffixes_that_were_not_run(self, monkeypatch):
        """The first and the last are what is compared with PEFT."""
        stock = Scorer.label_logits

        def few(self, prefix, suffixes):
            first, last = stock(self, prefix, [suffixes[0], suffixes[-1]], [0, len(suffixes) - 1])
            return [first] * (len(suffixes) - 1) + [last]

        monkeypatch.setattr(Scorer, "label_logits", few)
        entries = self._entries()
        assert entries[2]["ratio"]["median"] == 2.0
        assert entries[4]["ratio"] is None
        assert "ours ran 2 of its 4 prompts" in entries[4]["refused"]
