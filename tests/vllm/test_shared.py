"""The prefix is computed once, and what the cache gives is exactly what computing it would have given."""

import pytest
import torch

from alora.activation import shareable_blocks
from tests.vllm.toy_models import BLOCK
from tests.vllm.toys import INVOCATION, OTHER_INVOCATION, filler, prompt


@pytest.mark.parametrize("activation", [1, 31, 32, 33, 63, 64, 65, 100])
def test_an_adapter_hits_the_base_up_to_the_last_block_before_its_activation(engine, toys, activation):
    ids = prompt(activation, suffix=40)
    engine.ask_one(ids)
    assert engine.ask_one(ids, toys["linear"]).cached_tokens == shareable_blocks(activation, BLOCK) * BLOCK


@pytest.mark.parametrize("first", ["linear", "wide", "other"])
def test_an_adapter_hits_what_another_adapter_left(engine, toys, first):
    prefix = filler(70)
    engine.ask_one(prefix + list(toys[first].invocation) + filler(40, 1), toys[first])
    ids = prefix + list(toys["attention"].invocation) + filler(40, 2)
    assert engine.ask_one(ids, toys["attention"]).cached_tokens == shareable_blocks(70, BLOCK) * BLOCK
    assert engine.ask_one(ids).cached_tokens == shareable_blocks(70, BLOCK) * BLOCK, "and so does the base"


def test_adapters_with_different_activations_share_up_to_the_earlier_one(engine, toys):
    early = filler(40) + list(OTHER_INVOCATION) + filler(60, 1)
    engine.ask_one(early, toys["other"])
    later = early + list(toys["linear"].invocation) + filler(4, 2)
    assert engine.ask_one(later, toys["linear"]).cached_tokens == shareable_blocks(40, BLOCK) * BLOCK


def test_sent_together_on_a_cold_cache_the_prefix_is_computed_once(engine, toys):
    prefix, names = filler(96), ["linear", "wide", "attention", "other"]
    prompts = [prefix + list(toys[name].invocation) + filler(5, row) for row, name in enumerate(names)]
    answers = engine.ask(prompts, [toys[name] for name in names])
    assert [answer.cached_tokens for answer in answers] == [0, 96, 96, 96]


@pytest.mark.parametrize("first", [0, 1])
def test_two_invocations_in_one_block_share_only_what_is_before_it(engine, toys, first):
    """The prompts agree up to the block's end, and are adapted from its second and from its last token on."""
    trunk = filler(129) + list(INVOCATION) + filler(27, 1) + [INVOCATION[0]]
    prompts = [trunk + list(INVOCATION[1:]) + filler(4, 2), trunk + filler(6, 3)]
    engine.ask_one(prompts[first], toys["linear"])
    warm = engine.ask_one(prompts[1 - first], toys["linear"])
    engine.clear()
    cold = engine.ask_one(prompts[1 - first], toys["linear"])
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 128)
    assert torch.equal(cold.logprobs_V, warm.logprobs_V)


@pytest.mark.parametrize("name", ["attention", "linear", "wide"])
@pytest.mark.parametrize("activation", [64, 75])
def test_cached_equals_uncached_to_the_bit(engine, toys, name, activation):
    ids = prompt(activation)
    cold = engine.ask_one(ids, toys[name])
    engine.clear()
    engine.ask_one(ids)
    warm = engine.ask_one(ids, toys[name])
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 64)
    assert torch.equal(cold.logprobs_V, warm.logprobs_V)
