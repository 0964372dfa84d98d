"""KV before the activation, read out of vLLM's cache, is the base's to the last bit."""

import copy

import pytest
import torch

from alora.vllm_plugin import token_mapping
from alora.vllm_plugin.cache_reader import CacheReader
from tests.vllm.toy_engine import lora_request
from tests.vllm.toys import prompt

FIRST_OF_A_BLOCK = 64
LAST_OF_A_BLOCK = 63
LAYERS = 2


@pytest.fixture
def reader(engine):
    return CacheReader(engine.llm)


def differing_blocks(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[list[int]]:
    """Per layer, the blocks that differ in any bit."""
    return [(a != b).any(dim=1).nonzero().squeeze(1).tolist() for a, b in zip(one, other, strict=True)]


def read(reader, adapter, ids, garbage: float = 3.0) -> list[torch.Tensor]:
    """KV of a prompt computed from its first token into a cache that held ``garbage`` before."""
    reader.scrub(garbage)
    return reader.read(ids, lora_request(adapter))


@pytest.mark.parametrize("name", ["attention", "linear", "wide"])
@pytest.mark.parametrize(("activation", "adapted"), [(FIRST_OF_A_BLOCK, [2, 3]), (LAST_OF_A_BLOCK, [1, 2]), (70, [2])])
def test_prefix_kv_is_the_bases_and_differs_from_the_activation_on(reader, toys, name, activation, adapted):
    suffix = 93 - activation if activation != FIRST_OF_A_BLOCK else 61  # whole blocks: nothing left over in them
    ids = prompt(activation, suffix)
    base, under_adapter = read(reader, None, ids), read(reader, toys[name], ids)
    assert differing_blocks(base, under_adapter) == [adapted] * LAYERS


def test_the_comparison_sees_what_was_written(reader, toys):
    ids = prompt(70, suffix=23)
    base = read(reader, None, ids, garbage=3.0)
    assert differing_blocks(base, read(reader, None, ids, garbage=5.0)) == [[]] * LAYERS, "every byte is computed"
    assert len(base) == LAYERS
    assert base[0].unique().numel() > 100


def test_a_cached_prefix_is_used_and_not_written(reader, engine, toys):
    ids = prompt(70, suffix=23)
    base = read(reader, None, ids)
    cached = reader.read(ids, lora_request(toys["linear"]), fresh=False)
    assert differing_blocks(base, cached) == [[2]] * LAYERS
    assert differing_blocks(base, reader.read(ids, fresh=False)) == [[]] * LAYERS, "the base reads its own blocks back"


def test_plain_lora_differs_everywhere(reader, toys):
    ids = prompt(70, suffix=23)
    assert differing_blocks(read(reader, None, ids), read(reader, toys["plain"], ids)) == [[0, 1, 2]] * LAYERS


@pytest.mark.parametrize(
    ("activation", "shift", "adapted"), [(FIRST_OF_A_BLOCK, -1, [1, 2]), (LAST_OF_A_BLOCK, 1, [2])]
)
def test_an_activation_one_off_shows(reader, toys, monkeypatch, activation, shift, adapted):
    stock = token_mapping.mask_tokens

    def shifted(tokens, rows, scheduled):
        return stock(tokens, [(row and _moved(row, shift), computed) for row, computed in rows], scheduled)

    ids = prompt(activation, suffix=93 - activation)
    base = read(reader, None, ids)
    monkeypatch.setattr(token_mapping, "mask_tokens", shifted)
    assert differing_blocks(base, read(reader, toys["linear"], ids)) == [adapted] * LAYERS


def _moved(carried, shift: int):
    moved = copy.copy(carried)
    moved.activation_index += shift
    return moved


def test_one_changed_bit_in_the_cache_is_seen(reader, engine, toys):
    ids = prompt(70)
    base = read(reader, None, ids)
    for tensor in engine.runner.kv_caches:
        tensor.view(torch.int32)[..., 0].bitwise_xor_(1)
    flipped = reader.read(ids, fresh=False)
    assert all(0 in blocks for blocks in differing_blocks(base, flipped))
