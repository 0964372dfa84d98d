"""Which checkpoint of a policy is kept."""

import torch

from alora.adapter.bank import Bank
from alora.adapter.folder import AdapterSpec, new_adapter
from alora.training.track import Tracker
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


def test_patience_counts_from_the_best_evaluation():
    model = toy_model("qwen3")
    spec = AdapterSpec(rank=2, alpha=4.0, targets=("q_proj",), invocation_ids=(5,))
    bank = Bank(model, [new_adapter(spec, model, 0)], trainable=True)
    torch.nn.init.ones_(bank.b_POR[0])
    tracker = Tracker(bank, patience=3)
    for step, loss in enumerate([0.9, 1.0, 1.0, 0.8, 0.8, 0.9, 0.9, 0.1]):
        tracker.judge({0: loss}, step)
    assert (tracker.standings[0].best_step, tracker.standings[0].stopped_at) == (3, 6)
