"""Base block hashes that requests share are the very ones that stock vLLM computes."""

import itertools
import random
from types import SimpleNamespace

import pytest
import torch

from alora.vllm_plugin import install, prefix_hash, register, stand_ins
from alora.vllm_plugin.carried_request import CarriedLoRARequest

BLOCK = 4


@pytest.fixture(autouse=True)
def one_seed(monkeypatch):
    """One seed for all hashes: older builds of vLLM draw another each time it is asked to hash."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def carried(activation: int, digest: str = "d") -> CarriedLoRARequest:
    return CarriedLoRARequest(
        lora_name="a", lora_int_id=1, lora_path="/a", activation_index=activation, weights_digest=digest
    )


def random_prompts(seed: int) -> list[list[int]]:
    """Prompts that begin like one another for a while: the case in which sharing could go wrong."""
    draw = random.Random(seed)
    trunk = [draw.randrange(50) for _ in range(60)]
    prompts = []
    for _ in range(12):
        cut = draw.randrange(61)
        prompts.append(trunk[:cut] + [draw.randrange(50) for _ in range(draw.randrange(1, 30))])
    return prompts


@pytest.fixture
def stock_hashes():
    """Hashes of prompts under stock vLLM, which the plugin leaves for a moment."""

    def compute(prompts, salt):
        install.unregister()
        try:
            with stand_ins.block_hashing(BLOCK) as hashes:
                return [hashes(prompt, salt=salt) for prompt in prompts]
        finally:
            register()

    return compute


@pytest.mark.parametrize("salt", [None, "tenant"])
@pytest.mark.parametrize("seed", range(5))
def test_shared_hashes_equal_stock(stock_hashes, seed, salt):
    prompts = random_prompts(seed)
    wanted = stock_hashes(prompts, salt)
    with stand_ins.block_hashing(BLOCK) as hashes:
        assert [hashes(prompt, salt=salt) for prompt in prompts] == wanted
        for prompt, stock in zip(prompts, wanted, strict=True):
            for activation in (0, 3, 4, 9, len(prompt)):
                shared = activation // BLOCK
                found = hashes(prompt, carried(activation), salt)
                assert found[:shared] == stock[:shared]
                assert not set(found[shared:]) & set(stock)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 1)])
def test_prompts_that_differ_in_one_block_of_the_middle_share_none_from_there_on(stock_hashes, order):
    head, tail = [*range(2 * BLOCK)], [*range(20, 60)]
    prompts = [[*head, *[edit] * BLOCK, *tail] for edit in (7, 8, 9)]
    wanted = stock_hashes(prompts, None)
    with stand_ins.block_hashing(BLOCK) as hashes:
        for place in order:
            assert hashes(prompts[place]) == wanted[place]
            assert hashes(prompts[place], carried(50))[:12] == wanted[place][:12]


def test_tenants_whose_prompts_diverge_never_share(stock_hashes):
    """Each prompt is remembered by its first block and as a whole, and both belong to a tenant."""
    system = list(range(BLOCK))
    prompts = [system + [seed] * 40 for seed in (7, 8)]
    wanted = {salt: stock_hashes(prompts, salt) for salt in ("one", "two", None)}
    with stand_ins.block_hashing(BLOCK) as hashes:
        for _ in range(2):
            for salt, stock in wanted.items():
                assert [hashes(prompt, salt=salt) for prompt in prompts] == stock


@pytest.mark.parametrize("extra", ["mm_features", "prompt_embeds"])
def test_what_is_no_token_is_never_taken_from_a_prompt_of_tokens(extra):
    """Their ids are placeholders: two images look alike, and like plain text."""
    prompt = list(range(40))
    images = [[SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=4, length=30))] for name in "ab"]
    values = {"mm_features": images, "prompt_embeds": [torch.full((40, 2), value) for value in (1.0, 2.0)]}[extra]
    with stand_ins.block_hashing(BLOCK) as hashes:
        seen = [hashes(prompt), *(hashes(prompt, **{extra: value}) for value in values)]
        again = [hashes(prompt), *(hashes(prompt, carried(40), **{extra: value}) for value in values)]
    assert seen == again, "the base's blocks under an adapter have the base's keys"
    for one, other in itertools.combinations(seen, 2):
        assert not set(one[2:]) & set(other[2:])


def test_hashes_that_look_ahead_are_left_to_stock():
    """vLLM 0.33 with a drafter: a block's hash also covers tokens after the block."""
    patched = prefix_hash.block_hasher_patch(lambda *args, **more: "stock")
    assert patched(BLOCK, hash, 3) == patched(BLOCK, hash, lookahead=3) == "stock"
    assert patched(BLOCK, hash, lookahead=0) != "stock"


def test_two_activations_in_one_block_share_neither_it_nor_what_follows():
    prompt = list(range(40))
    with stand_ins.block_hashing(BLOCK) as hashes:
        early, late = hashes(prompt, carried(9)), hashes(prompt, carried(10))
    assert early[:2] == late[:2]
    assert not set(early[2:]) & set(late[2:])


def test_lora_that_stock_vllm_serves_by_itself_shares_nothing_with_the_base(stock_hashes):
    """Its request carries no activation where the engine refuses aLoRA."""
    from vllm.lora.request import LoRARequest

    prompt = list(range(40))
    with stand_ins.block_hashing(BLOCK) as hashes:
        base = hashes(prompt)
        plain = hashes(prompt, LoRARequest("plain", 1, "/plain"))
        assert not set(plain) & set(base)
        assert hashes(prompt) == base


def test_a_request_extended_by_its_answer_hashes_on_as_stock(stock_hashes):
    prompt = list(range(10))
    with stand_ins.block_hashing(BLOCK) as hashes:
        grown = hashes(prompt, answer=list(range(90, 99)))
    (wanted,) = stock_hashes([prompt + list(range(90, 99))], None)
    assert grown == wanted
