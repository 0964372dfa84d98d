"""Training on NF4: loss and gradients are those of PEFT's QLoRA aLoRA, and bitsandbytes' repacking is kept off."""

import copy

import pytest
import torch
from bitsandbytes.functional import has_avx512bf16
from bitsandbytes.nn import Linear4bit
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from alora.adapter.bank import Bank
from alora.base.load import keep_gradients, quantize_in_place
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from tests.peft_reference import peft_gradients, peft_label_logits, peft_model, random_adapter, relative_error
from tests.toy_models import toy_model

LABELS = (11, 12)
PREFIXES = (tuple(range(20, 37)), tuple(range(50, 59)))
PAIRS = (Pair(0, 0, (5, 6, 7, 30, 31), LABELS), Pair(0, 1, (5, 6, 7, 33), LABELS), Pair(1, 0, (5, 6, 7, 40), LABELS))


def wide() -> PreTrainedModel:
    """bitsandbytes repacks blocks of 32 rows and 64 columns, so the toys are too small for it."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "max_position_embeddings": 128}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=199, **shape, **heads))


def quantized(family: str = "qwen3") -> PreTrainedModel:
    model = wide() if family == "wide" else toy_model(family)
    quantize_in_place(model, torch.float32, torch.device("cpu"))
    return model.eval().requires_grad_(False)


def ours(model, adapters):
    bank = Bank(model, adapters, trainable=True)
    packed = PackedModel(model, bank)
    packed.train()
    logits_nL = packed.label_logits([packed.prefix_kv(prefix) for prefix in PREFIXES], PAIRS)
    loss = torch.nn.functional.cross_entropy(logits_nL, torch.tensor([0, 1, 1]), reduction="sum")
    loss.backward()
    bank.release()
    return loss.item(), [bank.gradients(policy) for policy in range(len(adapters))]


def theirs(model, adapters):
    wrapped = [peft_model(model, adapter).train() for adapter in adapters]
    total = 0.0
    for pair, label in zip(PAIRS, (0, 1, 1), strict=True):
        prefix, suffix = PREFIXES[pair.prefix], pair.suffix_ids
        logits_L = peft_label_logits(wrapped[pair.policy], prefix, suffix, pair.label_token_ids)
        loss = torch.nn.functional.cross_entropy(logits_L[None], torch.tensor([label]))
        loss.backward()
        total += loss.item()
    return total, [peft_gradients(one) for one in wrapped]


def worst(mine, others) -> float:
    assert all(one.keys() == other.keys() for one, other in zip(mine, others, strict=True))
    return max(
        relative_error(a, b)
        for one, other in zip(mine, others, strict=True)
        for name in one
        for a, b in zip(one[name], other[name], strict=True)
    )


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
def test_loss_and_gradients_equal_peft(family):
    model = quantized(family)
    adapters = [random_adapter(model, seed=1), random_adapter(model, rank=2, seed=2)]
    reference = copy.deepcopy(model)
    loss, gradients = ours(model, adapters)
    their_loss, their_gradients = theirs(reference, adapters)
    assert abs(loss - their_loss) <= 1e-5 * their_loss
    assert worst(gradients, their_gradients) <= 1e-5


def test_the_unquantized_base_is_another_function():
    """Negative control: the bound tells the 4-bit base from the one that it was made of."""
    model = toy_model("qwen3")
    adapters = [random_adapter(model, seed=1), random_adapter(model, seed=2)]
    assert worst(ours(quantized(), adapters)[1], theirs(model, adapters)[1]) > 1e-2


def test_weights_are_not_repacked():
    """The trap: repacked at the first call in eval mode, the layers pass no gradient on, then and ever after."""
    model = quantized("wide")
    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    assert layers
    assert not any(layer.support_avx512bf16_for_cpu for layer in layers)
    before = [layer.weight.data.clone() for layer in layers]
    with torch.no_grad():
        model(torch.tensor([PREFIXES[0]]))
    assert all(torch.equal(layer.weight.data, kept) for layer, kept in zip(layers, before, strict=True))
    _, gradients = ours(model, [random_adapter(model, seed=1), random_adapter(model, seed=2)])
    assert all(half.any() for found in gradients for pair in found.values() for half in pair)


@pytest.mark.filterwarnings("ignore:bitsandbytes..gemv_4bit:UserWarning")  # torch's remark on the very loss
@pytest.mark.skipif(not has_avx512bf16(), reason="this CPU does not make bitsandbytes repack")
def test_without_the_cure_the_gradient_is_lost():
    """Negative control: what :func:`keep_gradients` keeps off, on CPUs where it happens."""
    model = quantized("wide")
    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = True
    broken = copy.deepcopy(model)
    keep_gradients(model)
    lost = {}
    for name, one in (("kept", model), ("repacked", broken)):
        layer = one.get_submodule("model.layers.0.mlp.up_proj")
        with torch.no_grad():
            layer(torch.ones(1, 3, layer.in_features))
        layer.train()
        x = torch.ones(1, 3, layer.in_features, requires_grad=True)
        y = layer(x)
        if y.requires_grad:
            y.sum().backward()
        lost[name] = x.grad is None or not x.grad.any()
    assert lost == {"kept": False, "repacked": True}
