"""Adapters of unlike shapes in one bank: each keeps its own modules and its own rank."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import alora.adapter.bank
from alora.adapter.bank import Bank, Route
from alora.adapter.folder import AdapterSpec, AdapterWeights
from alora.errors import AdapterError
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"


@pytest.fixture
def adapters() -> list[AdapterWeights]:
    model = toy_model("qwen3")
    return [random_adapter(model, rank, targets=[target]) for rank, target in ((2, "q_proj"), (4, "v_proj"))]


def test_an_adapter_of_other_modules_is_not_inert(adapters):
    bank = Bank(toy_model("qwen3"), adapters, trainable=True)
    assert [bank.inert(policy) for policy in (0, 1)] == [False, False]
    with torch.no_grad():
        for b_POR in bank.b_POR:
            b_POR[1] = 0.0
    assert [bank.inert(policy) for policy in (0, 1)] == [False, True]


def test_an_adapter_of_other_widths_is_refused_before_anything_is_stacked(adapters, monkeypatch):
    """Its rank is that of every policy's stack."""
    monkeypatch.setattr(alora.adapter.bank, "_stack", None)
    (a_RD, b_OR), tensors = adapters[1].tensors[V], adapters[1].tensors
    adapters[1] = replace(adapters[1], tensors={**tensors, V: (a_RD[:, :31], b_OR)})
    with pytest.raises(AdapterError, match=r"adapter of .*v_proj is 31 -> 16, the base's layer 32 -> 16"):
        Bank(toy_model("qwen3"), adapters)


def test_an_adapter_costs_its_rank_in_its_own_modules_alone(adapters):
    bank = Bank(toy_model("qwen3"), adapters)
    assert [tuple(a_PRD.shape[:2]) for a_PRD in bank.a_PRD] == [(2, 2), (2, 4)] * (len(bank.a_PRD) // 2)
    for policy, given in enumerate(adapters):
        assert bank.adapter(policy).digest == given.digest


def test_gradients_have_the_shape_of_the_adapter(adapters):
    bank = Bank(toy_model("qwen3"), adapters, trainable=True)
    for policy, name in ((0, Q), (1, V)):
        found, own = bank.gradients(policy), adapters[policy].tensors
        assert found.keys() == own.keys()
        assert [half.shape for half in found[name]] == [half.shape for half in own[name]]


@pytest.mark.parametrize("chosen", [(0, 2), (1, 2), (2,), (0, 1, 2)], ids=str)
def test_the_passes_of_a_step_add_up_to_the_gradient_of_their_sum(chosen):
    """Whether the policies of a pass lie next to each other or not; a policy in no pass has no gradient."""
    torch.manual_seed(0)
    spec = AdapterSpec(2, 4.0, ("0",), (5,))
    adapters = [AdapterWeights(spec, {"0": (torch.randn(2, 6), torch.randn(4, 2))}) for _ in range(3)]
    model = nn.Sequential(nn.Linear(6, 4, bias=False)).requires_grad_(False)
    bank = Bank(model, adapters, trainable=True)
    passes = [torch.randn(1, len(chosen), 6) for _ in range(3)]
    for x in passes:
        with bank.route(Route.of_rows(chosen, torch.device("cpu"))):
            model(x).square().sum().backward()
    for policy, adapter in enumerate(adapters):
        a_RD, b_OR = (half.clone().requires_grad_() for half in adapter.tensors["0"])
        x_ND = torch.cat([x[0, [row for row, own in enumerate(chosen) if own == policy]] for x in passes])
        (model(x_ND) + 2.0 * x_ND @ a_RD.T @ b_OR.T).square().sum().backward()
        for found, wanted in zip(bank.gradients(policy)["0"], (a_RD.grad, b_OR.grad), strict=True):
            torch.testing.assert_close(found, wanted)


def test_an_input_that_comes_again_under_another_route_is_placed_anew():
    torch.manual_seed(0)
    spec = AdapterSpec(2, 4.0, ("0",), (5,))
    adapters = [AdapterWeights(spec, {"0": (torch.randn(2, 6), torch.randn(4, 2))}) for _ in range(2)]
    model, x = nn.Sequential(nn.Linear(6, 4, bias=False)), torch.randn(1, 2, 6)
    bank = Bank(model, adapters)
    there, back = (Route.of_rows(order, torch.device("cpu")) for order in ([0, 1], [1, 0]))
    with bank.route(back):
        wanted = model(x)
    with bank.route(there):
        first = model(x)
        bank.exchange(back)
        torch.testing.assert_close(model(x), wanted)
    assert not torch.allclose(first, wanted)


def test_a_failure_inside_leaves_it_enabled(adapters):
    model, ids = toy_model("qwen3"), torch.tensor([[3, 4, 5]])
    bank = Bank(model, adapters)
    with pytest.raises(ZeroDivisionError), bank.disabled():
        _ = 1 / 0
    with bank.route(Route.of_rows([0, 0, 0], torch.device("cpu"))):
        adapted = model(ids).logits
    assert not torch.equal(adapted, model(ids).logits)


def test_a_half_precision_base_and_its_adapter_are_summed_before_they_are_rounded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64, bias=False)).bfloat16()
    a_RD, b_OR, x = torch.randn(4, 16), torch.randn(64, 4), torch.randn(1, 8, 16).bfloat16()
    base = model(x)
    bank = Bank(model, [AdapterWeights(AdapterSpec(4, 8.0, ("0",), (5,)), {"0": (a_RD, b_OR)})])
    with bank.route(Route.of_rows([0] * 8, torch.device("cpu"))):
        found = model(x)
    delta = 2.0 * (x.float() @ a_RD.T) @ b_OR.T
    once, twice = (base.float() + delta).bfloat16(), base + delta.bfloat16()
    torch.testing.assert_close(found, once)
    assert (found != once).sum() < (found != twice).sum() / 4
