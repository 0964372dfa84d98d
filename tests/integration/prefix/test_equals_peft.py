"""The packed forward's loss and every gradient equal PEFT's full-sequence aLoRA, run one row at a time."""

from dataclasses import replace

import pytest
import torch

from alora.adapter.bank import Bank
from alora.prefix.packed import PackedModel
from alora.prefix.passes import Pair
from tests.peft_reference import (
    ATTENTION_TARGETS,
    peft_gradients,
    peft_label_logits,
    peft_model,
    random_adapter,
    relative_error,
)
from tests.toy_models import FAMILIES, toy_model, toy_tokens

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
PREFIX_LENGTHS = (5, 21, 13)
LABELS = ((11, 12), (13, 14, 16), (11, 15))


def _battery(model, dtype, lengths=PREFIX_LENGTHS, longer=7):
    """Three adapters of other ranks, targets and scalings, and pairs of ragged suffixes behind ragged prefixes; the
    suffixes of each policy are ``longer`` than those of the one before."""
    adapters = [
        random_adapter(model, rank=4, seed=1, dtype=dtype),
        random_adapter(model, rank=2, seed=2, targets=ATTENTION_TARGETS, dtype=dtype, scaling=0.7),
        random_adapter(
            model, rank=7, seed=3, targets=("down_proj", "q_proj"), dtype=dtype, scaling=1.3, rank_stabilised=True
        ),
    ]
    adapters = [
        replace(one, tensors={name: (a.to(model.device), b.to(model.device)) for name, (a, b) in one.tensors.items()})
        for one in adapters
    ]
    prefixes = [toy_tokens(length, seed) for seed, length in enumerate(lengths)]
    pairs = [
        Pair(
            prefix,
            policy,
            (5, 6, 7, *toy_tokens(3 + longer * policy + prefix, 50 + 9 * prefix + policy)),
            LABELS[policy],
        )
        for prefix, policy in [(2, 0), (0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (2, 1)]
    ]
    return adapters, prefixes, pairs


def _loss(logits: torch.Tensor, target: int) -> torch.Tensor:
    wide = logits.float() if logits.dtype == torch.bfloat16 else logits
    return torch.nn.functional.cross_entropy(wide[None], torch.tensor([target], device=logits.device))


def _ours(model, adapters, prefixes, pairs, dtype, checkpointing=False):
    bank = Bank(model, adapters, dtype=dtype, trainable=True)
    packed = PackedModel(model, bank)
    if checkpointing:
        packed.checkpoint_activations()
    packed.train()
    kv = [packed.prefix_kv(prefix) for prefix in prefixes]
    logits = packed.label_logits(kv, pairs)
    loss = sum(_loss(row, index % 2) for index, row in enumerate(logits))
    loss.backward()
    bank.release()
    return loss.item(), [bank.gradients(policy) for policy in range(len(adapters))], logits.detach()


def _theirs(model, adapters, prefixes, pairs):
    wrapped = [peft_model(model, adapter) for adapter in adapters]
    total = 0.0
    for index, pair in enumerate(pairs):
        logits = peft_label_logits(wrapped[pair.policy], prefixes[pair.prefix], pair.suffix_ids, pair.label_token_ids)
        loss = _loss(logits, index % 2)
        loss.backward()
        total += loss.item()
    return total, [peft_gradients(one) for one in wrapped]


def _worst(ours, theirs) -> float:
    worst = 0.0
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.keys() == reference.keys()
        for name in mine:
            for ours_, theirs_ in zip(mine[name], reference[name], strict=True):
                assert theirs_.norm() > 0
                worst = max(worst, relative_error(ours_, theirs_))
    return worst


def _mean_error(found, truth) -> float:
    errors = [
        relative_error(one.double(), other)
        for mine, reference in zip(found, truth, strict=True)
        for name in reference
        for one, other in zip(mine[name], reference[name], strict=True)
    ]
    return sum(errors) / len(errors)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("most", [0, 3], ids=["merged", "side by side"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_equal_peft(family, dtype, most, checkpointing, monkeypatch):
    monkeypatch.setattr("alora.prefix.passes.MOST_SUFFIXES", most)
    model = toy_model(family, dtype)
    adapters, prefixes, pairs = _battery(model, dtype)
    loss, gradients, _ = _ours(model, adapters, prefixes, pairs, dtype, checkpointing)
    their_loss, their_gradients = _theirs(model, adapters, prefixes, pairs)
    assert abs(loss - their_loss) / their_loss <= BOUNDS[dtype]
    assert _worst(gradients, their_gradients) <= BOUNDS[dtype]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bfloat16_base_is_no_further_from_the_truth_than_peft_is(family):
    """The truth is float64 on the same bfloat16 weights; adapters are float32, as in training. Of one model's rounding
    either may have the luck, so there are several."""
    ours = theirs = 0.0
    for seed in range(4):
        exact = toy_model(family, torch.bfloat16, seed).to(torch.float64)
        truth = _theirs(exact, *_battery(exact, torch.float64))[1]
        model = toy_model(family, torch.bfloat16, seed)
        case = _battery(model, torch.float32)
        ours += _mean_error(_ours(model, *case, torch.float32)[1], truth)
        theirs += _mean_error(_theirs(model, *case)[1], truth)
    assert 0 < ours <= 1.2 * theirs


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_head_grouping(kv_heads):
    model = toy_model("qwen3", torch.float64, kv_heads=kv_heads)
    adapters, prefixes, pairs = _battery(model, torch.float64)
    _, gradients, _ = _ours(model, adapters, prefixes, pairs, torch.float64)
    assert _worst(gradients, _theirs(model, adapters, prefixes, pairs)[1]) <= 1e-10


@pytest.mark.parametrize("family", FAMILIES)
def test_standard_lora_is_the_empty_prefix(family):
    model = toy_model(family, torch.float64)
    adapter = random_adapter(model, dtype=torch.float64, invocation=None)
    prompt = toy_tokens(23, 4)
    pairs = [Pair(0, 0, prompt, LABELS[0]), Pair(0, 0, prompt[:9], LABELS[0])]
    loss, gradients, _ = _ours(model, [adapter], [()], pairs, torch.float64)
    their_loss, theirs = _theirs(model, [adapter], [()], pairs)
    assert abs(loss - their_loss) <= 1e-10 * their_loss
    assert _worst(gradients, theirs) <= 1e-10


@pytest.mark.parametrize("shift", [-1, 1], ids=["early", "late"])
def test_one_token_off_is_not_equal(shift):
    """The negative control: the bound is tight enough to see an activation that is one token away."""
    model = toy_model("qwen3", torch.float64)
    adapter = random_adapter(model, dtype=torch.float64)
    prefix, suffix = toy_tokens(13, 1), (5, 6, 7, *toy_tokens(4, 2))
    whole = prefix + suffix
    cut = len(prefix) + shift
    _, gradients, _ = _ours(model, [adapter], [whole[:cut]], [Pair(0, 0, whole[cut:], LABELS[0])], torch.float64)
    assert _worst(gradients, _theirs(model, [adapter], [prefix], [Pair(0, 0, suffix, LABELS[0])])[1]) > 1e-4
