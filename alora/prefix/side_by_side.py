"""Attention of a few suffixes behind each of many conversations, as one padded batch.

:mod:`alora.prefix.attention` runs conversation by conversation, which is right when many suffixes share a prefix: the
prefix is then read once. Rows that are labelled for one policy each are the other case. Every conversation brings a
handful of queries, and the kernel calls per conversation and layer cost more than the arithmetic. Here each suffix of
a chunk is a row of one batch, whose keys are its prefix, itself, and padding up to the longest; one call of
``scaled_dot_product_attention`` serves them. Rows are copied by indices that are made once for a pass.

Shapes: H query heads, G KV heads, N packed rows, n suffixes, S positions of the longest suffix, K keys of the longest
prefix and suffix, E head width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.checkpoint import checkpoint

MOST_SUFFIXES = 3  # mean suffixes per conversation; with more, reading the prefix once per conversation is faster
_CHUNK_TOKENS = 16384  # of padded keys: bounds memory whatever the number of conversations

KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Suffixes:
    """Suffixes in row order: ``lengths`` of each, and ``owners``, the index of each one's conversation."""

    lengths: tuple[int, ...]
    owners: tuple[int, ...]
    scaling: float
    window: int | None  # sliding window of this layer
    last_only: bool = False  # only each suffix's last row is read; the other rows of the output are zero


@dataclass(frozen=True)
class _Chunk:
    """Suffixes that run as one batch."""

    rows: slice
    owners: tuple[int, ...]  # distinct, in order: their prefixes lie end to end, and the chunk's own rows behind them
    count: int
    query_nS: torch.Tensor | None  # row of each query, flat; None where rows are in that order
    key_nK: torch.Tensor  # index of each key in [prefixes | rows], flat
    real_N: torch.Tensor | None  # index of each row among the queries
    last_n: torch.Tensor  # row of each suffix's last token
    visible: torch.Tensor  # which keys each query sees: [n, 1, S, K], or one query each where last_only


def attend_side_by_side(
    q_HNE: torch.Tensor, k_GNE: torch.Tensor, v_GNE: torch.Tensor, prefixes: Sequence[KV], suffixes: Suffixes
) -> torch.Tensor:
    """Attention output ``[N, H, E]``, differentiable in q, k and v; ``prefixes[i]`` is ``(K_GTE, V_GTE)``."""
    outputs = []
    for chunk in _chunks(suffixes.lengths, suffixes.owners, tuple(k.shape[1] for k, _ in prefixes),
                         (suffixes.window, suffixes.last_only), q_HNE.device):  # fmt: skip
        own = [prefixes[owner] for owner in chunk.owners]
        arguments = (q_HNE[:, chunk.rows], k_GNE[:, chunk.rows], v_GNE[:, chunk.rows], own, chunk, suffixes)
        # Pad again in backward: the padded keys of a layer are as large as the whole prefix KV of the pass.
        outputs.append(checkpoint(_attend, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def _attend(
    q_HNE: torch.Tensor, k_GNE: torch.Tensor, v_GNE: torch.Tensor, prefixes: Sequence[KV], chunk: _Chunk,
    suffixes: Suffixes,
) -> torch.Tensor:  # fmt: skip
    asked = chunk.last_n if suffixes.last_only else chunk.query_nS
    q_HnSE = (q_HNE if asked is None else q_HNE.index_select(1, asked)).unflatten(1, (chunk.count, -1))
    own = (torch.cat((*(pair[half] for pair in prefixes), x), dim=1) for half, x in enumerate((k_GNE, v_GNE)))
    k_GnKE, v_GnKE = (x.index_select(1, chunk.key_nK).unflatten(1, (chunk.count, -1)) for x in own)
    out_nHSE = torch.nn.functional.scaled_dot_product_attention(
        q_HnSE.transpose(0, 1), k_GnKE.transpose(0, 1), v_GnKE.transpose(0, 1),
        attn_mask=chunk.visible, scale=suffixes.scaling, enable_gqa=True,
    )  # fmt: skip
    out = out_nHSE.transpose(1, 2).flatten(0, 1)
    if suffixes.last_only:
        return out.new_zeros(q_HNE.shape[1], *out.shape[1:]).index_copy(0, chunk.last_n, out)
    return out if chunk.real_N is None else out.index_select(0, chunk.real_N)


@lru_cache(maxsize=16)  # every layer of every pass asks
@torch.inference_mode(False)
def _chunks(
    lengths: tuple[int, ...], owners: tuple[int, ...], prefixes: tuple[int, ...], kind: tuple[int | None, bool],
    device: torch.device,
) -> list[_Chunk]:  # fmt: skip
    """``prefixes`` are their lengths, ``kind`` is the window and whether only the last rows are read."""
    return [
        _chunk(slice(row, row + sum(lengths[part])), lengths[part], owners[part], prefixes, kind, device)
        for row, part in _cut(lengths, [prefixes[owner] for owner in owners])
    ]


def _cut(lengths: Sequence[int], prefixes: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """First row and suffixes of each chunk; ``prefixes`` is the length of each suffix's prefix."""
    start = row = 0
    while start < len(lengths):
        longest, stop = 0, start
        while stop < len(lengths):
            longest = max(longest, prefixes[stop] + lengths[stop])
            if stop > start and longest * (stop + 1 - start) > _CHUNK_TOKENS:
                break
            stop += 1
        yield row, slice(start, stop)
        row, start = row + sum(lengths[start:stop]), stop


def _chunk(
    rows: slice, lengths: tuple[int, ...], owners: tuple[int, ...], prefixes: tuple[int, ...],
    kind: tuple[int | None, bool], device: torch.device,
) -> _Chunk:  # fmt: skip
    (window, last_only), distinct = kind, tuple(dict.fromkeys(owners))
    ends = torch.tensor([prefixes[owner] for owner in distinct]).cumsum(0)
    first = {owner: int(end) - prefixes[owner] for owner, end in zip(distinct, ends, strict=True)}
    start_n1 = torch.tensor([first[owner] for owner in owners])[:, None]
    prefix_n1 = torch.tensor([prefixes[owner] for owner in owners])[:, None]
    length_n1 = torch.tensor(lengths)[:, None]
    row_n1 = length_n1.cumsum(0) - length_n1
    # Positions count from the start of the conversation; what pads stands behind every query of its suffix.
    key_K, own_S = torch.arange(int((prefix_n1 + length_n1).max())), torch.arange(max(lengths))
    behind_nK = (key_K - prefix_n1).clamp(max=length_n1 - 1)
    key_nK = torch.where(behind_nK < 0, start_n1 + key_K, int(ends[-1]) + row_n1 + behind_nK)
    own_nS = own_S.clamp(max=length_n1 - 1)  # a query that pads is the suffix's last one again
    at_nS = prefix_n1 + (length_n1 - 1 if last_only else own_nS)
    distance = at_nS[:, :, None] - key_K
    visible = (distance >= 0) & (distance < window) if window is not None else distance >= 0
    even = min(lengths) == max(lengths)
    return _Chunk(
        rows,
        distinct,
        len(lengths),
        None if even else (row_n1 + own_nS).flatten().to(device),
        key_nK.flatten().to(device),
        None if even else (own_S < length_n1).flatten().nonzero()[:, 0].to(device),
        (row_n1 + length_n1 - 1)[:, 0].to(device),
        visible[:, None].to(device),
    )
