"""The comparison of cache blocks, on blocks made by hand: each planted fault is found, and named by its layer."""

import pytest
import torch

from alora.client.certify_in_vllm import _Case, _cut, _findings, _layers
from alora.prompt.render import Prefix, Prompt, Suffix

LAYERS, BLOCKS, BYTES = 2, 4, 16


def _blocks(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (BLOCKS, BYTES), dtype=torch.uint8, generator=generator) for _ in range(LAYERS)]


def _case(change) -> _Case:
    """Activation in block 2; ``change`` edits what the adapter left behind."""
    base, adapted = _blocks(0), _blocks(0)
    for layer in adapted:
        layer[2:] ^= 1
    change(adapted)
    return _Case(tuple(range(16)), 9, 2, base, adapted)


def test_identity_has_no_findings():
    case = _case(lambda blocks: None)
    assert _findings(case, case.adapted, {0, 1}) == []


def _one_bit_early(blocks):
    blocks[1][1, 3] ^= 4


def _inert(blocks):
    blocks[0][2:] ^= 1


def _late(blocks):
    blocks[1][2] ^= 1


@pytest.mark.parametrize(
    ("change", "check", "detail"),
    [
        (_one_bit_early, "prefix", "layer 1: block 1"),
        (_inert, "activation", "layer 0"),
        (_late, "activation", "layer 1"),
    ],
)
def test_a_fault_is_found(change, check, detail):
    case = _case(change)
    (finding,) = _findings(case, case.adapted, {0, 1})
    assert finding.check == check
    assert finding.detail.startswith(detail)


def test_a_layer_that_the_adapter_cannot_reach_need_not_differ():
    case = _case(_inert)
    assert _findings(case, case.adapted, {1}) == []


def test_layers_count_what_differs():
    first, second = _layers([_case(_one_bit_early)], {0})
    assert (first.must_differ, first.prefix_elements, first.prefix_different) == (True, 2 * BYTES, 0)
    assert (second.must_differ, second.prefix_different, second.activation_different) == (False, 1, BYTES)


@pytest.mark.parametrize("length", range(8, 40))
def test_prompts_are_cut_to_both_ends_of_a_block_and_keep_one(length):
    prompt = Prompt(Prefix(tuple(range(100, 100 + length))), Suffix((1, 2, 3), (1, 2), (5, 6)))
    cases = _cut([prompt], 8, 37)
    assert length < 16 or {activation % 8 for _, activation in cases} >= {0, 7}
    for ids, activation in cases:
        assert ids[activation:] == (1, 2, 3)
        assert activation >= 8  # or there is nothing to compare before it
        assert len(ids) <= 37
        assert ids[:activation] == prompt.prefix.token_ids[-activation:]
