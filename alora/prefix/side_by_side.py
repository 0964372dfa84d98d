"""Attention of a few suffixes behind each of many conversations, as one padded batch.

:mod:`alora.prefix.attention` runs conversation by conversation, which is right when many suffixes share a prefix: the
prefix is then read once. Rows that are labelled for one policy each are the other case. Every conversation brings a
handful of queries, and some seventy small kernel calls per conversation and layer cost more than the arithmetic. Here
all conversations of a chunk are padded to the longest, and one call of ``scaled_dot_product_attention`` serves them.

Shapes: H query heads, G KV heads, N packed rows, n suffixes, S positions of the longest suffix, T prefix tokens, E head
width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
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


def attend_side_by_side(
    q_HNE: torch.Tensor, k_GNE: torch.Tensor, v_GNE: torch.Tensor, prefixes: Sequence[KV], suffixes: Suffixes
) -> torch.Tensor:
    """Attention output ``[H, N, E]``, differentiable in q, k and v; ``prefixes[i]`` is ``(K_GTE, V_GTE)``."""
    outputs = []
    for rows, part, owners in _chunks(suffixes, [k.shape[1] for k, _ in prefixes]):
        own = [prefixes[owner] for owner in owners]
        arguments = (q_HNE[:, rows], k_GNE[:, rows], v_GNE[:, rows], own, part)
        # Pad again in backward: the padded keys of a layer are as large as the whole prefix KV of the pass.
        outputs.append(checkpoint(_attend, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, dim=1)


def _chunks(suffixes: Suffixes, prefix_lengths: Sequence[int]) -> Iterator[tuple[slice, Suffixes, list[int]]]:
    """Rows, suffixes and owners of each chunk; inside it, suffix ``i`` stands behind prefix ``i``."""
    start = row = 0
    while start < len(suffixes.lengths):
        longest, stop = 0, start
        while stop < len(suffixes.lengths):
            longest = max(longest, prefix_lengths[suffixes.owners[stop]] + suffixes.lengths[stop])
            if stop > start and longest * (stop + 1 - start) > _CHUNK_TOKENS:
                break
            stop += 1
        lengths = suffixes.lengths[start:stop]
        part = Suffixes(lengths, tuple(range(len(lengths))), suffixes.scaling, suffixes.window, suffixes.last_only)
        yield slice(row, row + sum(lengths)), part, list(suffixes.owners[start:stop])
        row, start = row + sum(lengths), stop


def _attend(
    q_HNE: torch.Tensor, k_GNE: torch.Tensor, v_GNE: torch.Tensor, prefixes: Sequence[KV], suffixes: Suffixes
) -> torch.Tensor:
    lengths, device = suffixes.lengths, q_HNE.device
    q_nHSE, k_nGSE, v_nGSE = (_padded(x, lengths) for x in (q_HNE, k_GNE, v_GNE))
    prefix_k, prefix_v = (_stacked([pair[half] for pair in prefixes]) for half in (0, 1))
    last_n = torch.tensor(lengths, device=device) - 1
    each = torch.arange(len(lengths), device=device)
    if suffixes.last_only:
        q_nHSE = q_nHSE[each, :, last_n].unsqueeze(2)
    out_nHSE = torch.nn.functional.scaled_dot_product_attention(
        q_nHSE,
        torch.cat((prefix_k, k_nGSE), dim=2),
        torch.cat((prefix_v, v_nGSE), dim=2),
        attn_mask=_visible([k.shape[1] for k, _ in prefixes], suffixes, device),
        scale=suffixes.scaling,
        enable_gqa=True,
    )
    if suffixes.last_only:
        whole = out_nHSE.new_zeros(*out_nHSE.shape[:2], max(lengths), out_nHSE.shape[3])
        whole[each, :, last_n] = out_nHSE[:, :, 0]
        out_nHSE = whole
    real = torch.arange(max(lengths), device=device) <= last_n[:, None]
    return out_nHSE.transpose(1, 2)[real].transpose(0, 1)


def _padded(x_HNE: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """``[H, N, E] -> [n, H, S, E]``."""
    if min(lengths) == max(lengths):
        return x_HNE.unflatten(1, (len(lengths), -1)).transpose(0, 1)
    pieces = list(x_HNE.transpose(0, 1).split(list(lengths)))
    return pad_sequence(pieces, batch_first=True).transpose(1, 2)


def _stacked(prefixes: Sequence[torch.Tensor]) -> torch.Tensor:
    """``n x [G, T, E] -> [n, G, T, E]`` with zeros behind the shorter ones."""
    return pad_sequence([x.transpose(0, 1) for x in prefixes], batch_first=True).transpose(1, 2)


def _visible(prefix_lengths: Sequence[int], suffixes: Suffixes, device: torch.device) -> torch.Tensor:
    """Which keys each query sees: ``[n, 1, S, T + S]``, or one query each where ``last_only``."""
    width, longest = max(suffixes.lengths), max(prefix_lengths)
    prefix_n = torch.tensor(prefix_lengths, device=device)[:, None]
    own_S, prefix_T = torch.arange(width, device=device), torch.arange(longest, device=device)
    # Positions count from the start of the conversation; a key that is padding gets one that nobody reaches.
    beyond = 2**30
    key_nK = torch.cat(
        (torch.where(prefix_T < prefix_n, prefix_T, beyond), prefix_n + own_S.expand(len(prefix_lengths), -1)), dim=1
    )
    if suffixes.last_only:
        query_nS = prefix_n + torch.tensor(suffixes.lengths, device=device)[:, None] - 1
    else:
        query_nS = prefix_n + own_S
    distance = query_nS[:, :, None] - key_nK[:, None, :]
    seen = distance >= 0 if suffixes.window is None else (distance >= 0) & (distance < suffixes.window)
    return seen[:, None]
