"""Where the rows of a pass lie."""

import torch

from alora.prefix.passes import Pair, PrefixKV, groups_of, rows_of

PREFIXES = (PrefixKV((), 7), None, PrefixKV((), 3))


def test_ragged_suffixes_lie_end_to_end_behind_their_conversations():
    lengths = ((0, 2), (0, 3), (1, 4), (2, 1), (2, 5))
    pairs = [Pair(prefix, place, tuple(range(length)), (11, 12)) for place, (prefix, length) in enumerate(lengths)]
    groups = groups_of(pairs, PREFIXES, torch.device("cpu"))
    assert [group.rows for group in groups] == [slice(0, 5), slice(5, 9), slice(9, 15)]
    assert [group.lengths for group in groups] == [(2, 3), (4,), (1, 5)]
    assert [group.last_n.tolist() for group in groups] == [[1, 4], [3], [0, 5]]
    assert [group.kv for group in groups] == [*PREFIXES]
    ids, positions, last, policies = rows_of(pairs, PREFIXES)
    assert positions == [7, 8, 7, 8, 9, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7]
    assert last == [1, 4, 8, 9, 14]
    assert policies == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4]
    assert ids == [token for _, length in lengths for token in range(length)]
