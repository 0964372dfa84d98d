"""What a store keeps, what it computes together, and how much memory it may take."""

import pytest
import torch

from alora.prefix import store as stores
from alora.prefix.passes import PrefixKV
from alora.prefix.store import PrefixStore, groups_by_length, memory_budget

CPU = torch.device("cpu")
TOKEN_BYTES = 16  # of kv()


def kv(token_ids) -> PrefixKV:
    values = torch.tensor(token_ids, dtype=torch.float32).repeat(2, 1).unsqueeze(-1)
    return PrefixKV(((values, values + 1),), len(token_ids))


def prefix(length: int, first: int = 20) -> tuple[int, ...]:
    return tuple(range(first, first + length))


class Runs:
    """Computes prefixes and remembers the groups."""

    def __init__(self) -> None:
        self.groups: list[tuple[tuple[int, ...], ...]] = []

    def __call__(self, group):
        self.groups.append(tuple(group))
        return [kv(ids) for ids in group]


def test_what_is_planned_is_computed_once_with_its_whole_group():
    store, run, ids = PrefixStore(10**6, CPU), Runs(), [prefix(5), prefix(5, 40), prefix(300), prefix(6)]
    store.plan(ids, TOKEN_BYTES)
    for wanted in ([ids[1]], [ids[0], ids[2]], ids):
        found = store.get(wanted, run)
        assert list(found) == wanted
        assert all(torch.equal(found[one].layers[0][0], kv(one).layers[0][0]) for one in wanted)
    assert run.groups == [(ids[0], ids[1], ids[3]), (ids[2],)]
    assert (store.hits, store.misses) == (5, 2)
    assert store.shortfall() is None


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
def test_the_groups_follow_from_the_rows_and_not_from_what_is_needed_first(order):
    """A resumed training asks in another order, and must get the same bytes."""
    store, run, ids = PrefixStore(10**6, CPU), Runs(), [prefix(5), prefix(5, 40), prefix(300), prefix(6)]
    store.plan(ids, TOKEN_BYTES)
    for index in order:
        store.get([ids[index]], run)
    assert set(run.groups) == {(ids[0], ids[1], ids[3]), (ids[2],)}


def test_a_prefix_that_opens_like_another_one_of_its_length_has_its_own_kv():
    alike = [(1, 2, 3, 4, last) for last in (5, 6)]
    store = PrefixStore(10**6, CPU)
    store.plan(alike, TOKEN_BYTES)
    for _ in range(2):
        for ids in alike:
            found = store.get([ids], Runs())
            assert torch.equal(found[ids].layers[0][0], kv(ids).layers[0][0])


def test_what_has_no_room_runs_with_the_others_of_its_pass_and_is_computed_again():
    short, long = [prefix(5), prefix(5, 40)], [prefix(300), prefix(301)]
    store, run = PrefixStore(TOKEN_BYTES * 10, CPU), Runs()
    store.plan([*long, *short], TOKEN_BYTES)
    for _ in range(2):
        store.get([*long, *short], run)
    assert run.groups == [tuple(short), tuple(long), tuple(long)]
    needed = TOKEN_BYTES * (2 * 5 + 2 * 301)
    assert f"2 of 4 prefixes and the others were computed each time; training.prefix_cache_bytes={needed}" in str(
        store.shortfall()
    )
    enough = PrefixStore(needed, CPU)
    enough.plan([*long, *short], TOKEN_BYTES)
    assert enough.shortfall() is None


def test_a_group_holds_each_prefix_once_and_pads_little(monkeypatch):
    monkeypatch.setattr(stores, "GROUP_TOKENS", 1000)
    lengths = [90, 0, 100, 91, 100, 700, 300, 700, 1200]
    groups = list(groups_by_length([prefix(n, 20 + n % 7) for n in lengths], CPU))
    assert [[len(ids) for ids in group] for group in groups] == [[90, 91, 100], [300], [700], [1200]]


def test_the_budget_is_half_of_what_is_free(monkeypatch):
    assert stores._free_memory() > 2**20
    for free in (10**10, 4 * 10**9):
        monkeypatch.setattr(stores, "_free_memory", lambda free=free: free)
        assert (memory_budget(CPU), memory_budget(CPU, sharing=4)) == (free // 2, free // 8)
