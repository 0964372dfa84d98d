"""Which checkpoint of a policy is kept."""

from types import SimpleNamespace
from typing import Any

import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.training.examples import Members
from alora.training.standings import GradientStep, Tally, Tracker
from tests.toy_models import toy_model


def test_an_adapter_that_has_not_moved_is_no_candidate():
    model = toy_model("qwen3")
    spec = AdapterSpec(rank=2, alpha=4.0, targets=("q_proj",), invocation_ids=(5,))
    bank = Bank(model, [new_adapter(spec, model, seed) for seed in (0, 1)], trainable=True)
    tracker = Tracker(bank, patience=3)
    with torch.no_grad():
        bank.b_POR[0][1, 0, 0] = 0.5
    tracker.judge({0: 0.1, 1: 0.6}, step=1)
    assert [standing.best_step for standing in tracker.standings] == [None, 1]
    with torch.no_grad():
        bank.b_POR[0][0, 0, 0] = 0.5
    tracker.judge({0: 0.5, 1: 0.7}, step=2)
    assert [standing.best_step for standing in tracker.standings] == [2, 1]
    assert tracker.best(0).tensors["model.layers.0.self_attn.q_proj"][1][0, 0] == 0.5
    tracker.judge({0: float("nan")}, step=3)
    assert "validation loss is nan" in tracker.standings[0].dropped
    still = Tracker(Bank(model, [new_adapter(spec, model, 0)]), patience=3)
    still.judge({0: float("nan")}, step=1)
    assert "validation loss is nan" in (still.standings[0].dropped or ""), "also while it has not moved"


def _tracker(patience: int) -> tuple[Tracker, Bank]:
    model = toy_model("qwen3")
    spec = AdapterSpec(rank=2, alpha=4.0, targets=("q_proj",), invocation_ids=(5,))
    bank = Bank(model, [new_adapter(spec, model, seed) for seed in (0, 1)], trainable=True)
    with torch.no_grad():
        bank.b_POR[0].fill_(0.5)
    return Tracker(bank, patience), bank


def test_patience_counts_the_evaluations_since_the_best():
    tracker, _ = _tracker(patience=3)
    for step, loss in enumerate((0.6, 0.7, 0.7, 0.5, 0.5, 0.6), start=1):
        tracker.judge({0: loss, 1: 1.0 / step}, step)
        assert tracker.active == {0, 1}
    tracker.judge({0: 0.6, 1: 0.1}, 7)
    assert tracker.active == {1}
    assert (tracker.standings[0].best_step, tracker.standings[0].stopped_at) == (4, 7)
    assert tracker.standings[1].best_step == 7
    tracker.judge({0: 0.1}, 8)
    assert tracker.standings[0].best_step == 4, "a stopped policy is judged no more"


def test_a_checkpoint_gives_back_the_best_of_every_policy(tmp_path):
    tracker, bank = _tracker(patience=3)
    tracker.judge({0: 0.5, 1: 0.5}, 1)
    with torch.no_grad():
        bank.b_POR[0].fill_(0.25)
    tracker.judge({0: 0.6, 1: 0.4}, 2)
    tracker.save(tmp_path)
    again, _ = _tracker(patience=3)
    again.load(tmp_path)
    assert (again.judged, again.standings) == (2, tracker.standings)
    assert [again.best(place).digest for place in (0, 1)] == [tracker.best(place).digest for place in (0, 1)]
    assert float(again.best(0).tensors["model.layers.0.self_attn.q_proj"][1].max()) == 0.5
    assert float(again.best(1).tensors["model.layers.0.self_attn.q_proj"][1].max()) == 0.25


def test_only_the_first_gradient_of_a_policy_is_watched_and_each_layer_of_it():
    tracker, bank = _tracker(patience=3)
    watch, control, nothing = GradientStep(bank, tracker), SimpleNamespace(should_training_stop=False), Any
    for parameter in bank.parameters():
        parameter.grad = torch.ones_like(parameter)

    def step(*trained: int) -> list[str | None]:
        tracker.trained.update(trained)
        watch.on_pre_optimizer_step(nothing, nothing, control)  # pyright: ignore[reportArgumentType]
        return [standing.dropped for standing in tracker.standings]

    assert step(0) == [None, None]
    for parameter in (bank.a_PRD[0], bank.b_POR[0]):
        parameter.grad = torch.zeros_like(parameter)  # of one layer of several
    assert step(0) == [None, None], "a gradient may vanish later"
    assert not control.should_training_stop
    kept, dropped = step(1)
    assert kept is None
    assert "no gradient reached 1 adapted layer" in dropped
    tracker.drop(0, "for another reason")
    assert step(0) == ["for another reason", dropped]
    assert control.should_training_stop
    again, _ = _tracker(patience=3)
    again.drop(0, "for another reason")
    again.trained.add(0)
    GradientStep(bank, again).on_pre_optimizer_step(nothing, nothing, control)  # pyright: ignore[reportArgumentType]
    assert again.standings[0].dropped == "for another reason"


def test_a_loss_that_doubles_is_taken_back_once_and_ends_the_second_time():
    tracker, _ = _tracker(patience=3)

    def astray(first, second, step, rows=500):
        tally = Tally((0, 1))
        tally.add([0] * rows + [1] * rows, [first] * rows + [second] * rows)
        return tracker.astray(tally, step)

    for step, losses in enumerate(((0.7, 0.1), (0.5, 0.3), (1.3, 0.4)), start=1):
        assert astray(*losses, step) == [], "neither a rise by less, nor a small loss that doubles"
    assert astray(4.0, 0.4, 4, rows=2) == [], "nor a few rows"
    assert tracker.rates == [1.0, 1.0]
    assert astray(2.5, 0.4, 5) == [0]
    assert (tracker.standings[0].taken_back_at, tracker.rates) == (5, [0.5, 1.0])
    assert astray(0.7, 0.4, 6) == []
    assert astray(3.0, 0.4, 7) == []
    assert "doubled again at half the learning rate" in (tracker.standings[0].dropped or "")
    assert tracker.active == {1}


def test_all_adapters_of_a_policy_share_its_standing(tmp_path):
    model = toy_model("qwen3")
    spec = AdapterSpec(rank=2, alpha=4.0, targets=("q_proj",), invocation_ids=(5,))
    members = Members((2, 0))
    bank = Bank(model, [new_adapter(spec, model, 0) for _ in members.owners], trainable=True)
    with torch.no_grad():
        bank.b_POR[0].fill_(0.5)
    tracker = Tracker(bank, 1, members)
    assert tracker.active == {0, 1, 2, 3}
    answers = {0: [[1.0, 2.0], [3.0, 0.1]]}
    tracker.judge({0: 0.5, 1: 0.5}, 1, answers)
    tracker.judge({0: 0.6, 1: 0.4}, 2, {0: [[9.0, 9.0], [9.0, 9.0]]})
    assert tracker.active == {1}, "a policy that stops takes its folds along"
    assert tracker.out_of_fold(0) == answers[0], "the answers of the best step"
    tracker.drop(3, "lost")
    assert tracker.standings[1].dropped is None
    assert tracker.standings[0].dropped == "lost"
    tracker.save(tmp_path)
    again = Tracker(bank, 1, members)
    again.load(tmp_path)
    assert (again.standings, again.out_of_fold(0)) == (tracker.standings, answers[0])
