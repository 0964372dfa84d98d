"""The trainer's gradients are PEFT's, and what cannot learn is stopped."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import TrainerCallback

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.errors import TrainingError
from alora.training.examples import Example, Target
from alora.training.loop import fit
from alora.training.standings import Tracker
from tests.integration.training.last_weights import LastWeights
from tests.peft_reference import (
    ALL_TARGETS,
    peft_gradients,
    peft_label_logits,
    peft_model,
    random_adapter,
    relative_error,
)
from tests.toy_models import as_base, toy_model, toy_tokens

INVOCATION = (5, 6, 7)
LABELS = (11, 12)


def _base(family="qwen3", dtype=torch.float64) -> LoadedBase:
    return as_base(toy_model(family, dtype))


def _examples(count: int, first: int = 0) -> list[Example]:
    """Ragged prefixes, one suffix, and a label that the last prefix token decides."""
    made = []
    for number in range(first, first + count):
        prefix = (*toy_tokens(4 + number % 9, number), 21 + number % 2)
        made.append(Example(prefix, (Target(0, (*INVOCATION, 30, 31), LABELS, number % 2),)))
    return made


def _fresh(base, invocation=INVOCATION):
    return new_adapter(AdapterSpec(4, 8.0, tuple(sorted(ALL_TARGETS)), invocation), base.model, seed=0)


class _Gradients(TrainerCallback):
    """Copies the bank's gradients before the first optimiser step, and stops."""

    def __init__(self):
        self.found, self.bank = None, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.bank = model.packed.bank

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if self.found is None:
            self.found = copy.deepcopy(self.bank.gradients(0))
        control.should_training_stop = True


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
@pytest.mark.parametrize(("batch", "accumulation"), [(12, 1), (4, 3)], ids=["one-batch", "accumulated"])
def test_trainer_gradients_equal_peft(tmp_path, family, dtype, bound, batch, accumulation):
    base, rows = _base(family, dtype), _examples(12)
    watch = _Gradients()
    settings = TrainingSettings(
        batch_size=batch, gradient_accumulation_steps=accumulation, max_grad_norm=1e9, max_suffix_tokens=11
    )
    adapter = _fresh(base)
    # B is not zero, so that A has a gradient too.
    adapter = type(adapter)(adapter.spec, {n: (a, 0.1 * torch.randn_like(b)) for n, (a, b) in adapter.tensors.items()})
    fit(base, [adapter], rows, _examples(4, 50), settings, tmp_path, progress=False, callbacks=[watch])
    reference = peft_model(base.model, type(adapter)(adapter.spec, {
        n: (a.to(dtype), b.to(dtype)) for n, (a, b) in adapter.tensors.items()
    }))  # fmt: skip
    for row in rows:
        target = row.targets[0]
        logits = peft_label_logits(reference, row.prefix_ids, target.suffix_ids, LABELS)
        (torch.nn.functional.cross_entropy(logits[None], torch.tensor([target.label])) / len(rows)).backward()
    theirs = peft_gradients(reference)
    assert watch.found.keys() == theirs.keys()
    worst = max(relative_error(o, t) for n in theirs for o, t in zip(watch.found[n], theirs[n], strict=True))
    assert worst <= bound


class _EveryGradient(_Gradients):
    """The gradients of B at every step; A's are zero while B is."""

    def on_train_begin(self, *args, **kwargs):
        super().on_train_begin(*args, **kwargs)
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.steps.append({name: db.clone() for name, (_, db) in self.bank.gradients(0).items()})
        (self.group,) = kwargs["optimizer"].param_groups


def test_a_last_step_of_fewer_batches_has_the_gradient_of_a_whole_one(tmp_path):
    """Four batches of one and the same row, three to a step."""
    watch = _EveryGradient()
    settings = TrainingSettings(
        epochs=1, batch_size=4, gradient_accumulation_steps=3, learning_rate=1e-12, weight_decay=0.02
    )
    base = _base()
    fit(
        base, [_fresh(base)], _examples(1) * 16, _examples(4, 50), settings, tmp_path, progress=False, callbacks=[watch]
    )
    whole, last = watch.steps
    assert max(relative_error(last[name], whole[name]) for name in whole) <= 1e-6
    adamw = {name: watch.group[name] for name in ("betas", "eps", "weight_decay")}
    assert adamw == {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.02}, "as PEFT users have it by default"


class _OfEach(_Gradients):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.found = [copy.deepcopy(self.bank.gradients(policy)) for policy in range(len(self.bank.specs))]


def test_policies_of_unlike_many_rows_have_the_gradients_that_they_have_alone(tmp_path):
    def gradients(rows, folder):
        policies = 1 + max(row.targets[0].policy for row in rows)
        watch = _OfEach()
        settings = TrainingSettings(max_steps=1, batch_size=len(rows), max_grad_norm=1e9)
        fit(base, [_fresh(base)] * policies, rows, _examples(2, 50), settings, tmp_path / folder, progress=False,
            callbacks=[watch])  # fmt: skip
        return watch.found

    base, rows = _base(), _examples(4)
    few = replace(rows[3], targets=(replace(rows[3].targets[0], policy=1),))
    together = gradients([*rows[:3], few], "together")
    for found, alone in zip(together, (rows[:3], rows[3:]), strict=True):
        (wanted,) = gradients(alone, str(len(alone)))
        assert max(relative_error(found[name][1], wanted[name][1]) for name in wanted) <= 1e-10


def _whole(row: Example) -> Example:
    """The row for standard LoRA: one prompt without a prefix of the base's own."""
    (target,) = row.targets
    return Example((), (replace(target, suffix_ids=row.prefix_ids + target.suffix_ids),))


@pytest.mark.parametrize("invocation", [INVOCATION, None], ids=["alora", "lora"])
def test_training_lowers_the_validation_loss(tmp_path, invocation):
    base = _base(dtype=torch.float32)
    rows, held_out = _examples(64), _examples(16, 100)
    if invocation is None:
        rows, held_out = ([_whole(row) for row in part] for part in (rows, held_out))
    settings = TrainingSettings(epochs=6, batch_size=8, learning_rate=1e-2)
    fitted = fit(base, [_fresh(base, invocation)], rows, held_out, settings, tmp_path, progress=False)
    losses = [entry["eval_loss"] for entry in fitted.history if "eval_loss" in entry]
    assert min(losses) < 0.3 < losses[0]
    assert fitted.standings[0].best_loss == min(losses)


def _hooks(model) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def test_the_base_comes_back_as_it_was(tmp_path):
    base = _base(dtype=torch.float32)
    ids = torch.tensor([toy_tokens(9, 3)])
    before, hooks = base.model(ids).logits, _hooks(base.model)
    settings = TrainingSettings(max_steps=2, gradient_checkpointing=True)
    fit(base, [_fresh(base)], _examples(8), _examples(4, 9), settings, tmp_path, progress=False)
    assert torch.equal(before, base.model(ids).logits)
    assert not any(module.training for module in base.model.modules())
    assert _hooks(base.model) == hooks


def test_no_gradient_stops_the_run(tmp_path, monkeypatch):
    """Negative control: hooks that never fire leave the adapter untouched, and the run says so."""
    monkeypatch.setattr(Bank, "_adapted", lambda self, index, x, y, route: y + 0.0 * self.b_POR[index].sum())
    with pytest.raises(TrainingError, match="no gradient reached 21 adapted layer"):
        fit(_base(), [_fresh(_base())], _examples(8), _examples(4, 9), TrainingSettings(), tmp_path, progress=False)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    base = _base(dtype=torch.float32)
    adapter = _fresh(base)
    broken = type(adapter)(adapter.spec, {n: (a, b + float("nan")) for n, (a, b) in adapter.tensors.items()})
    with pytest.raises(TrainingError, match="loss is not finite at step 0"):
        fit(base, [broken], _examples(8), _examples(4, 9), TrainingSettings(), tmp_path, progress=False)


class _Killed(Exception):
    pass


@pytest.mark.parametrize(
    "how",
    [{"max_steps": 4, "scheduler": "constant"}, {"epochs": 6, "early_stopping_patience": 1, "learning_rate": 0.3}],
    ids=["in-mid-epoch", "stopped-early"],
)
def test_a_run_cut_off_behind_its_last_checkpoint_is_the_same(tmp_path, monkeypatch, how):
    settings = TrainingSettings(**({"batch_size": 4, "learning_rate": 1e-2} | how))
    base, rows, held_out = _base(dtype=torch.float32), _examples(24), _examples(8, 100)
    whole = fit(base, [_fresh(base)], rows, held_out, settings, tmp_path / "whole", progress=False)

    def killed(self, place):
        raise _Killed

    monkeypatch.setattr(Tracker, "best", killed)
    with pytest.raises(_Killed):
        fit(base, [_fresh(base)], rows, held_out, settings, tmp_path / "cut", progress=False)
    monkeypatch.undo()
    again = fit(base, [_fresh(base)], rows, held_out, settings, tmp_path / "cut", progress=False)
    assert again.steps == whole.steps
    assert again.standings == whole.standings
    assert again.adapters[0].digest == whole.adapters[0].digest


class _Began(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.step = state.global_step


class _CutOff(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise _Killed


def test_a_run_cut_off_on_its_way_ends_with_the_same_weights(tmp_path):
    """Weights, moments, data order, learning rate and standings are those of the last checkpoint, in mid-epoch."""
    settings = TrainingSettings(
        max_steps=11, batch_size=4, learning_rate=1e-2, weight_decay=0.1, evaluations_per_epoch=3, scheduler="linear"
    )
    base = _base(dtype=torch.float32)
    rows, held_out = (
        [replace(row, targets=tuple(replace(row.targets[0], policy=policy) for policy in (0, 1))) for row in part]
        for part in (_examples(36), _examples(8, 100))
    )
    adapters = [random_adapter(base.model, seed=seed) for seed in (0, 1)]
    whole, again, began = LastWeights(), LastWeights(), _Began()
    undisturbed = fit(base, adapters, rows, held_out, settings, tmp_path / "a", progress=False, callbacks=[whole])
    with pytest.raises(_Killed):
        fit(base, adapters, rows, held_out, settings, tmp_path / "b", progress=False, callbacks=[_CutOff(8)])
    resumed = fit(base, adapters, rows, held_out, settings, tmp_path / "b", progress=False, callbacks=[again, began])
    assert began.step == 6, "where the last checkpoint is"
    assert [adapter.digest for adapter in again.adapters] == [adapter.digest for adapter in whole.adapters]
    assert [adapter.digest for adapter in resumed.adapters] == [adapter.digest for adapter in undisturbed.adapters]
    assert resumed.standings == undisturbed.standings
    judged = [[entry for entry in fitted.history if "eval_loss" in entry] for fitted in (resumed, undisturbed)]
    assert judged[0] == judged[1]


def test_an_adapter_that_no_step_moved_is_given_up(tmp_path):
    base, rows = _base(dtype=torch.float32), _examples(8)
    settings = TrainingSettings(max_steps=2, batch_size=4, learning_rate=1e-300)  # nothing is left of it in float32
    with pytest.raises(TrainingError, match=r"no step .* moved its adapter; raise training.max_steps"):
        fit(base, [_fresh(base)], rows, rows, settings, tmp_path, progress=False)
    settings = replace(settings, max_steps=1, learning_rate=None)  # one step, too, has a rate
    assert fit(base, [_fresh(base)], rows, rows, settings, tmp_path, progress=False).standings[0].best_step == 1
