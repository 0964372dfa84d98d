"""Prefix KV in the passes of a batch."""

import pytest
import torch

from alora.adapter.bank import Bank
from alora.prefix.packed import PackedModel
from alora.prefix.plan import Pair
from alora.prefix.store import MemoryStore
from alora.training.model import SharedPrefixModel
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

PREFIXES = ((20, 30, 40), (20, 30, 50), (20, 60))  # they open alike


def shared_model(budget: int | None = None) -> SharedPrefixModel:
    base = toy_model("qwen3")
    packed = PackedModel(base, Bank(base, [random_adapter(base)]))
    return SharedPrefixModel(packed, None if budget is None else MemoryStore(budget)).eval()


def pair(prefix: int) -> Pair:
    return Pair(prefix, 0, (5, 6, 7, 31), (11, 12))


@pytest.mark.parametrize("budget", [None, 2**20])
def test_a_pass_behind_another_prefix_takes_no_kv_of_the_last_one(budget):
    model = shared_model(budget)
    for place in (0, 1, 2, 1):
        found = model(PREFIXES, [pair(place)])
        assert torch.equal(found, shared_model()(PREFIXES, [pair(place)]))


def test_the_next_pass_behind_a_prefix_that_the_store_has_no_room_for_does_not_compute_it_again(monkeypatch):
    model, computed, stock = shared_model(budget=0), [], PackedModel.prefix_kv
    monkeypatch.setattr(PackedModel, "prefix_kv", lambda self, ids: computed.append(ids) or stock(self, ids))
    for _ in range(3):
        model(PREFIXES, [pair(0)])
    assert computed == [PREFIXES[0]]
    model.forget()
    model(PREFIXES, [pair(0)])
    assert computed == [PREFIXES[0]] * 2
