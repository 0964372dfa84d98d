"""Prefix KV in the passes of a batch, and which policies a step moves."""

import pytest
import torch
from torch import nn

from alora.adapter.bank import Bank
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from alora.prefix.store import open_store
from alora.training.model import PolicyAdamW, SharedPrefixModel
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

PREFIXES = ((20, 30, 40, 50, 60), (20, 30, 40, 50, 70), (20, 60))  # they open alike


def shared_model(budget: int | None = None) -> SharedPrefixModel:
    base = toy_model("qwen3")
    packed = PackedModel(base, Bank(base, [random_adapter(base)]))
    return SharedPrefixModel(packed, None if budget is None else open_store(budget, base, PREFIXES)).eval()


def pair(prefix: int) -> Pair:
    return Pair(prefix, 0, (5, 6, 7, 31), (11, 12))


@pytest.mark.parametrize("budget", [None, 2**20])
def test_a_pass_behind_another_prefix_takes_no_kv_of_the_last_one(budget):
    model = shared_model(budget)
    for place in (0, 1, 2, 1):
        found = model(PREFIXES, [pair(place)])
        torch.testing.assert_close(found, shared_model()(PREFIXES, [pair(place)]), rtol=0, atol=1e-6)


def test_the_next_pass_behind_a_prefix_that_the_store_has_no_room_for_does_not_compute_it_again(monkeypatch):
    model, computed, stock = shared_model(budget=0), [], PackedModel.run_prefixes
    monkeypatch.setattr(PackedModel, "run_prefixes", lambda self, group: computed.append(group) or stock(self, group))
    for _ in range(3):
        model(PREFIXES, [pair(0)])
    assert computed == [(PREFIXES[0],)]
    model.forget()
    model(PREFIXES, [pair(0)])
    assert computed == [(PREFIXES[0],)] * 2


def test_the_prefixes_of_a_pass_run_in_one_forward(monkeypatch):
    model, computed, stock = shared_model(), [], PackedModel.run_prefixes
    monkeypatch.setattr(PackedModel, "run_prefixes", lambda self, group: computed.append(group) or stock(self, group))
    together = model(PREFIXES, [pair(place) for place in (2, 0, 1)])
    assert [len(group) for group in computed] == [3]
    alone = torch.cat([shared_model()(PREFIXES, [pair(place)]) for place in (2, 0, 1)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_a_gradient_in_any_parameter_moves_the_policy():
    """Policies may adapt other modules: one has no gradient in the first, one none in the last, one none at all."""
    first, last = (nn.Parameter(torch.ones(3, 1)) for _ in range(2))
    first.grad, last.grad = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    PolicyAdamW([first, last], lr=0.5, weight_decay=0.1).step()
    assert first.flatten().tolist() == pytest.approx([0.45, 0.95, 1.0])
    assert last.flatten().tolist() == pytest.approx([0.95, 0.45, 1.0])


def test_a_policy_that_is_taken_back_starts_without_momentum():
    stacked = nn.Parameter(torch.ones(2, 1))
    optimiser = PolicyAdamW([stacked], lr=0.5)
    stacked.grad = torch.ones(2, 1)
    optimiser.step()
    optimiser.forget([0])
    assert [[bool(held[policy].any()) for held in optimiser.state[stacked].values()] for policy in (0, 1)] == [
        [False] * 3, [True] * 3
    ]  # fmt: skip
