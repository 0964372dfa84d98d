"""Folds: no row answers for itself, whatever the adapter has learnt; and a run that is cut off ends the same."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import TrainerCallback

from alora.adapter.folder import AdapterSpec, new_adapter
from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Members, Target
from alora.training.loop import fit
from tests.integration.training.last_weights import LastWeights
from tests.peft_reference import ALL_TARGETS
from tests.toy_models import as_base, toy_model, toy_tokens

INVOCATION, LABELS, FOLDS = (5, 6, 7), (11, 12), 3


@pytest.fixture(scope="module")
def base():
    return as_base(toy_model("qwen3", torch.float32))


def _rows(count, policies=1, decided=False):
    """Rows whose labels are a coin's, so that only memory gets them right; or decided by the prefix's last token."""
    coins = torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(7)).tolist()
    made = []
    for number in range(count):
        label = number % 2 if decided else coins[number]
        prefix = (*toy_tokens(6, number), 21 + number % 2)
        targets = [Target(p, (*INVOCATION, 30, 31), LABELS, label, fold=number // 2 % FOLDS) for p in range(policies)]
        made.append(Example(prefix, tuple(targets)))
    return made


def _fit(base, rows, folder, **options):
    given = {"max_steps": 60, "batch_size": 8, "learning_rate": 1e-2, "early_stopping_patience": 0}
    spec = AdapterSpec(8, 16.0, tuple(sorted(ALL_TARGETS)), INVOCATION)
    policies = 1 + max(target.policy for row in rows for target in row.targets)
    fresh = [new_adapter(spec, base.model, seed) for seed in range(policies)]
    settings = TrainingSettings(scheduler="constant", **given | options.pop("settings", {}))
    return fit(base, fresh, rows, [], settings, folder, progress=False, **options)


def _auroc(rows, logits):
    labels = [1 - row.targets[0].label for row in rows]
    return roc_auc_score(labels, [first - second for first, second in logits])


def test_a_row_never_scores_itself_and_a_planted_leak_is_seen(base, tmp_path, monkeypatch):
    """The labels are coins: an adapter that has not seen a row cannot know its label, one that has can."""
    rows = _rows(48)
    honest = _fit(base, rows, tmp_path / "a").out_of_fold[0]
    assert len(honest) == len(rows)
    # The step is chosen by the folds' loss, and coins are best answered before anything is learnt by heart: so the
    # last weights are asked here, as a leak would be worst there.
    monkeypatch.setattr("alora.training.standings.Tracker.judge", _keep_the_last)
    honest = _fit(base, rows, tmp_path / "b").out_of_fold[0]
    assert 0.2 < _auroc(rows, honest) < 0.8

    def leaky(self, example):
        for target in example.targets:
            yield target
            yield from (replace(target, policy=self.fold(target.policy, k)) for k in range(FOLDS))

    monkeypatch.setattr(Members, "_learners", leaky)
    leaked = _fit(base, rows, tmp_path / "c").out_of_fold[0]
    assert _auroc(rows, leaked) > 0.95


def _keep_the_last(tracker, losses, step, answers=None):
    tracker.judged = step
    for policy in losses:
        tracker._best[policy], tracker._answers[policy] = tracker._bank.adapter(policy), answers[policy]


def test_no_adapter_learns_from_what_it_is_judged_by():
    """By the rows themselves, of two policies of which one has folds."""
    rows = _rows(12, policies=2)
    rows = [replace(row, targets=(row.targets[0], replace(row.targets[1], fold=None))) for row in rows]
    members, validation = Members.of(rows, 2), [replace(rows[0], prefix_ids=(9, 9), targets=rows[0].targets[1:])]
    assert members.owners == (0, 1, 0, 0, 0)
    taught = {(row.prefix_ids, target.policy) for row in members.train(rows) for target in row.targets}
    asked = [(row.prefix_ids, target.policy) for row in members.held_out(rows, validation) for target in row.targets]
    assert not taught & set(asked)
    assert sorted(asked) == sorted([((9, 9), 1), *[(row.prefix_ids, 2 + row.targets[0].fold) for row in rows]])
    of_all = {prefix for prefix, adapter in taught if adapter == 0}
    assert of_all == {row.prefix_ids for row in rows}, "the adapter that is kept learns from every row"


def test_folds_learn_what_can_be_learnt_and_answer_in_the_order_of_the_rows(base, tmp_path):
    rows = _rows(48, policies=2, decided=True)
    fitted = _fit(base, rows, tmp_path, settings={"max_suffix_tokens": 40})
    for policy, logits in enumerate(fitted.out_of_fold):
        assert _auroc(rows, logits) > 0.95, policy
    assert [standing.best_step is not None for standing in fitted.standings] == [True, True]
    assert len(fitted.adapters) == 2


class _Killed(Exception):
    pass


class _CutOff(LastWeights):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 8:
            raise _Killed


def test_a_run_in_folds_that_is_cut_off_ends_with_the_same_bytes(base, tmp_path):
    rows, settings = _rows(36, policies=2, decided=True), {"max_steps": 13, "batch_size": 4, "evaluations_per_epoch": 3}
    whole = _fit(base, rows, tmp_path / "a", settings=settings)
    with pytest.raises(_Killed):
        _fit(base, rows, tmp_path / "b", settings=settings, callbacks=[_CutOff()])
    resumed = _fit(base, rows, tmp_path / "b", settings=settings)
    assert [adapter.digest for adapter in resumed.adapters] == [adapter.digest for adapter in whole.adapters]
    assert (resumed.standings, resumed.out_of_fold) == (whole.standings, whole.out_of_fold)


class _Jolt(TrainerCallback):
    """Sends the weights astray from step 19 to 24."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if 18 < state.global_step <= 24:
            with torch.no_grad():
                for b_POR in model.packed.bank.b_POR:
                    b_POR.mul_(-10)


def test_a_training_that_goes_astray_is_taken_back(base, tmp_path):
    rows = _rows(48, decided=True)
    settings = {"max_steps": 60, "evaluations_per_epoch": 1}
    calm = _fit(base, rows, tmp_path / "calm", settings=settings)
    assert calm.standings[0].taken_back_at is None  # negative control
    jolted = _fit(base, rows, tmp_path / "jolted", settings=settings, callbacks=[_Jolt()])
    standing = jolted.standings[0]
    assert 24 <= (standing.taken_back_at or 0) <= 36, "soon after the jolt"
    assert standing.dropped is None
    assert _auroc(rows, jolted.out_of_fold[0]) > 0.95
    last = [entry["loss"] for entry in jolted.history if "loss" in entry][-1]
    assert last < 0.3, "it went on from before the jolt"
