"""What a training's settings leave open is decided from its rows and rank."""

import pytest
import torch
from transformers import get_scheduler

from alora.config.schema import SCHEDULERS, TrainingSettings
from alora.training.examples import Example, Target
from alora.training.loop import _arguments
from alora.training.schedule import loss_curves, make_schedule, still_improving


def rows(*policies_of_row: tuple[int, ...]) -> list[Example]:
    return [
        Example((number,), tuple(Target(policy, (1, 2), (3, 4), 0) for policy in policies))
        for number, policies in enumerate(policies_of_row)
    ]


def test_a_step_holds_batch_size_rows_of_each_policy():
    apart = rows(*[(number % 8,) for number in range(8 * 240)])
    together = rows(*[tuple(range(8))] * 240)
    alone = rows(*[(0,)] * 240)
    settings = TrainingSettings(batch_size=8)
    assert make_schedule(settings, apart, 16).conversations == 64
    assert make_schedule(settings, together, 16).conversations == 8
    assert make_schedule(settings, alone, 16).conversations == 8
    assert {make_schedule(settings, some, 16).steps_per_epoch for some in (apart, together, alone)} == {30}


@pytest.mark.parametrize(("count", "epochs"), [(24, 20), (200, 6), (240, 5), (400, 3), (10_000, 2)])
def test_epochs_follow_the_rows_of_a_policy(count, epochs):
    for policies in (1, 3):
        apart = rows(*[(number % policies,) for number in range(policies * count)])
        assert make_schedule(TrainingSettings(), apart, 16).settings.epochs == epochs


@pytest.mark.parametrize(("rank", "rate"), [(16, 1.2e-3), (4, 2.4e-3), (64, 0.6e-3)])
def test_the_rate_follows_the_rank(rank, rate):
    assert make_schedule(TrainingSettings(), rows((0,)), rank).settings.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize(("width", "rate"), [(64, 1.2e-3), (576, 1.2e-3), (896, 7.7e-4), (2560, 2.7e-4)])
def test_the_rate_falls_with_the_base_s_width(width, rate):
    found = make_schedule(TrainingSettings(), rows((0,)), 16, width).settings.learning_rate
    assert found == pytest.approx(rate, rel=0.01)


def test_what_is_given_stays():
    given = TrainingSettings(epochs=1.5, learning_rate=3e-4, batch_size=2, max_steps=7)
    schedule = make_schedule(given, rows(*[(0,)] * 20), 4)
    assert schedule.settings == given
    assert (schedule.conversations, schedule.steps, schedule.steps_per_epoch) == (2, 7, 10)


def test_every_setting_reaches_the_trainer(tmp_path):
    given = TrainingSettings(
        epochs=1.5, batch_size=2, gradient_accumulation_steps=2, learning_rate=3e-4, weight_decay=0.02, seed=11,
        warmup_ratio=0.25, scheduler="linear", max_grad_norm=0.5, evaluations_per_epoch=2,
    )  # fmt: skip
    arguments = _arguments(make_schedule(given, rows(*[(0,)] * 40), 4), tmp_path, torch.device("cpu"))
    wanted = {
        "num_train_epochs": 1.5, "max_steps": -1, "learning_rate": 3e-4, "weight_decay": 0.02, "seed": 11,
        "data_seed": 11, "warmup_steps": 4, "lr_scheduler_type": "linear", "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 2, "eval_steps": 5, "save_steps": 5, "logging_steps": 5,
        "save_total_limit": 2,
        "max_grad_norm": 0.0, "save_only_model": False, "ignore_data_skip": False,
    }  # fmt: skip
    assert {name: getattr(arguments, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([0.6, 0.5], (0.6, 0.5)),
        ([0.6, 0.5, 0.495], None),  # less than a fiftieth
        ([0.6, 0.4, 0.5], None),
        ([0.4, 0.6, 0.5], None),  # better than the last one, not than the best
        ([0.6], None),
        ([0.6, None, 0.5], (0.6, 0.5)),
        ([0.6, 0.0], (0.6, 0.0)),
        ([0.0002, 0.0001], None),  # a half of nothing
    ],
)
def test_still_improving(losses, found):
    for key, policies in (("eval_loss", 1), ("eval_loss_1", 3)):
        history = [{"loss": 0.1}, *({key: loss, "step": 1.0} for loss in losses)]
        curves = loss_curves(history, 1 if policies > 1 else 0, policies)
        assert still_improving(curves["validation"]) == found


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("ratio", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_the_last_step_has_a_rate(steps, ratio, scheduler, tmp_path):
    given = TrainingSettings(max_steps=steps, warmup_ratio=ratio, scheduler=scheduler, learning_rate=1.0)
    arguments = _arguments(make_schedule(given, rows(*[(0,)] * 40), 16), tmp_path, torch.device("cpu"))
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    following = get_scheduler(scheduler, optimiser, int(arguments.warmup_steps), steps)
    rates = []
    for _ in range(steps):
        rates.append(following.get_last_lr()[0])
        optimiser.step()
        following.step()
    assert rates[-1] > 0
