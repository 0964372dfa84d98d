"""Who does which conversation: the same answer everywhere, even loads, and home when its prefix is kept there."""

import random

import pytest

from alora.training.processes import share_out


def step(seed: int, conversations: int = 16) -> tuple[list[tuple[int, ...]], list[int]]:
    rng = random.Random(seed)
    prefixes = [tuple(rng.choices(range(1000), k=rng.randint(50, 2000))) for _ in range(conversations)]
    return prefixes, [rng.randint(10, 400) for _ in range(conversations)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_loads_are_even(count):
    for seed in range(20):
        prefixes, suffix_tokens = step(seed, 8 * count)
        owners = share_out(prefixes, suffix_tokens, count, kept=False)
        costs = [len(prefix) + 3 * tokens for prefix, tokens in zip(prefixes, suffix_tokens, strict=True)]
        loads = [sum(cost for cost, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(count)]
        assert max(loads) <= 1.2 * sum(costs) / count


def test_a_step_of_fewer_conversations_than_processes():
    assert sorted(share_out([(1,), (2,)], [5, 5], 4, kept=False)) == [0, 1]
    assert share_out([], [], 4, kept=True) == []
