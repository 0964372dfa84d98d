"""What a training decides from its adapters and its base, and what it says of itself."""

import pytest
import torch

from alora.adapter.folder import AdapterSpec, new_adapter
from alora.base.load import LoadedBase
from alora.config.schema import TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import fit
from tests.toy_models import as_base, toy_model

INVOCATION = (5, 6, 7)


def base_of(dtype=torch.float32) -> LoadedBase:
    return as_base(toy_model("qwen3", dtype))


def rows(count: int, policies: int = 1) -> list[Example]:
    return [
        Example(
            (20 + number, 40, 21 + number % 2),
            tuple(Target(policy, (*INVOCATION, 30), (11, 12), number % 2) for policy in range(policies)),
        )
        for number in range(count)
    ]


def adapters_of(base: LoadedBase, *ranks: int):
    return [new_adapter(AdapterSpec(rank, 2.0 * rank, ("q_proj",), INVOCATION), base.model, seed=0) for rank in ranks]


def test_what_the_settings_leave_open_follows_the_largest_rank(tmp_path):
    base = base_of()
    settings = TrainingSettings(max_steps=1)
    fitted = fit(base, adapters_of(base, 4, 64, 16), rows(4, 3), rows(2, 3), settings, tmp_path, progress=False)
    assert fitted.settings.learning_rate == pytest.approx(0.6e-3)
    assert fitted.settings.epochs == 20


def test_adapters_train_in_float32_on_a_half_precision_base(tmp_path):
    base = base_of(torch.bfloat16)
    fitted = fit(base, adapters_of(base, 2), rows(4), rows(2), TrainingSettings(max_steps=2), tmp_path, progress=False)
    for halves in fitted.adapters[0].tensors.values():
        assert {half.dtype for half in halves} == {torch.float32}
        assert any((half != half.bfloat16()).any() for half in halves), "no half of it was ever bfloat16"


def test_a_last_step_between_two_evaluations_is_evaluated_too(tmp_path):
    base = base_of()
    settings = TrainingSettings(max_steps=4, batch_size=2, evaluations_per_epoch=1)
    fitted = fit(base, adapters_of(base, 2), rows(6), rows(2), settings, tmp_path, progress=False)
    assert [entry["step"] for entry in fitted.history if "eval_loss" in entry] == [3, 4]


def test_the_steps_of_a_training_that_stopped_early_are_those_that_it_took(tmp_path):
    base = base_of()
    settings = TrainingSettings(max_steps=40, batch_size=2, learning_rate=3.0, early_stopping_patience=1)
    fitted = fit(base, adapters_of(base, 2), rows(6), rows(2), settings, tmp_path, progress=False)
    assert fitted.steps == fitted.standings[0].stopped_at < 40
