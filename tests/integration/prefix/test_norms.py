"""A norm as one kernel gives what transformers' chain of kernels gives, on the base and on adapters alike."""

import copy

import pytest
import torch

from alora.adapter.bank import Bank
from alora.prefix import norms
from alora.prefix.norms import fuse_norms
from alora.prefix.packed import PackedModel
from tests.integration.prefix.test_equals_peft import _battery, _ours, _theirs, _worst
from tests.peft_reference import random_adapter
from tests.toy_models import toy_model

NORMS = {"qwen3": 4 * 3 + 1, "llama": 2 * 3 + 1, "gemma3": 0}  # Gemma's adds 1 to its weight


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch):
    monkeypatch.setattr(norms, "FUSED_ON", frozenset({"cpu"}))


def _weighted(family: str, dtype: torch.dtype):
    """A toy whose norms have weights other than 1."""
    model = toy_model(family, dtype)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw).to(dtype))
    return model


@pytest.mark.parametrize("family", NORMS)
def test_the_fused_norms_are_the_stock_ones_and_a_copy_has_its_own(family):
    model, ids = _weighted(family, torch.float64), torch.tensor([[20, 30, 40, 50]])
    stock = model(ids).logits
    assert fuse_norms(model) == NORMS[family]
    torch.testing.assert_close(model(ids).logits, stock, rtol=0, atol=1e-6)  # the chain's own are in float32
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "norm" in name:
                parameter.add_(0.5)
    assert (other(ids).logits - stock).abs().max() > 1e-3
    torch.testing.assert_close(model(ids).logits, stock, rtol=0, atol=1e-6)


def test_gradients_on_fused_norms_equal_pefts_on_the_same_base():
    model = _weighted("qwen3", torch.float64)
    case = _battery(model, torch.float64)
    _, gradients, _ = _ours(model, *case, torch.float64)
    assert _worst(gradients, _theirs(model, *case)[1]) <= 1e-10


def test_a_packed_model_fuses_them_and_its_prefix_is_the_bases():
    model = _weighted("qwen3", torch.bfloat16)
    packed = PackedModel(model, Bank(model, [random_adapter(model)]))
    assert all("forward" in vars(module) for module in model.modules() if type(module).__name__ == "Qwen3RMSNorm")
    ids = list(range(20, 40))
    kv, stock = packed.prefix_kv(ids), model.get_decoder()(torch.tensor([ids]), use_cache=True).past_key_values
    assert all(torch.equal(k, layer.keys[0]) for (k, _), layer in zip(kv.layers, stock.layers, strict=True))
