"""Each suffix's attention over its own keys alone, causally: set 2 of :mod:`alora.prefix.attention`.

Suffixes are padded to one length and run as a batch, by the fused kernel where there is one. Its backward is handed the
merged output and log-sum-exp, as that of the prefix is (:mod:`alora.prefix.flash`). A window that is shorter than a
suffix needs a mask, and the plain way.

Shapes: H query heads, G KV heads, N packed rows, n suffixes, S positions of the longest, E head width.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from alora.prefix import flash

_FORWARD_BYTES = 2**28  # of one block of forward scores


@dataclass(frozen=True)
class Shape:
    """What the attention of one conversation's suffixes needs besides tensors."""

    lengths: tuple[int, ...]  # of the suffixes, in row order
    scaling: float
    window: int | None  # sliding window of this layer
    last_only: bool = False  # one query per suffix, of its last position; keys and values are of all


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def attend_in_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of ``[..., Q, E]`` over ``[..., T, E]``, in blocks of query rows: what all of them score
    grows with the square of a long text."""
    rows, outs, lses = max(1, _FORWARD_BYTES // (4 * max(1, k.shape[:-1].numel()))), [], []
    for start in range(0, q.shape[-2], rows):
        part = slice(start, start + rows)
        scores = scores_of(q[..., part, :], k, scaling)
        if hidden is not None:
            scores.masked_fill_(hidden[..., part, :], float("-inf"))
        lse = scores.logsumexp(-1)
        # A position that sees no prefix at all has lse = -inf: weight 0 in the merge, provided its output is finite.
        outs.append(torch.exp(scores - lse.clamp_min(torch.finfo(lse.dtype).min).unsqueeze(-1)) @ v.to(scores.dtype))
        lses.append(lse)
    return torch.cat(outs, -2), torch.cat(lses, -1)


def scores_of(q: torch.Tensor, k: torch.Tensor, scaling: float) -> torch.Tensor:
    dtype = compute_dtype(q)
    return torch.matmul(q.to(dtype), k.to(dtype).transpose(-1, -2)).mul_(scaling)


@dataclass(frozen=True)
class _Padding:
    """Ragged suffixes as a padded batch: ``[H, N, ...] <-> [H, n, S, ...]``; a view when all are of one length."""

    count: int
    width: int
    real_N: torch.Tensor | None  # index of each row among the padded ones
    row_nS: torch.Tensor | None  # row that stands at each index; what pads is the suffix's last row again

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.row_nS is None else x.index_select(1, self.row_nS)
        return x.unflatten(1, (self.count, self.width))

    def pad_with_zeros(self, x: torch.Tensor) -> torch.Tensor:
        if self.real_N is not None:
            x = x.new_zeros(x.shape[0], self.count * self.width, *x.shape[2:]).index_copy_(1, self.real_N, x)
        return x.unflatten(1, (self.count, self.width))

    def strip(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1, 2)
        return flat if self.real_N is None else flat.index_select(1, self.real_N)


@lru_cache(maxsize=64)  # every layer of a pass asks, forward and backward
@torch.inference_mode(False)
def _padding(lengths: tuple[int, ...], device: torch.device) -> _Padding:
    count, width = len(lengths), max(lengths)
    if min(lengths) == width:
        return _Padding(count, width, None, None)
    length_n1, at_S = torch.tensor(lengths)[:, None], torch.arange(width)
    row_nS = length_n1.cumsum(0) - length_n1 + at_S.clamp(max=length_n1 - 1)
    real_N = (at_S < length_n1).flatten().nonzero()[:, 0]
    return _Padding(count, width, real_N.to(device), row_nS.flatten().to(device))


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _hidden(shape: Shape, device: torch.device) -> torch.Tensor:
    """Where a query may not see a key of its own suffix: ``[S, S]``, or ``[n, 1, S]`` for the last positions alone."""
    position_S = torch.arange(max(shape.lengths))
    if shape.last_only:
        distance = torch.tensor(shape.lengths)[:, None, None] - 1 - position_S
    else:
        distance = position_S[:, None] - position_S[None, :]
    hidden = (distance < 0) | (distance >= shape.window) if shape.window is not None else distance < 0
    return hidden.to(device)


def _paddings(shape: Shape, device: torch.device) -> tuple[_Padding, _Padding]:
    """Of the queries, and of the keys and values."""
    keys = _padding(shape.lengths, device)
    return (_padding((1,) * len(shape.lengths), device) if shape.last_only else keys), keys


def _by_kernel(q: torch.Tensor, shape: Shape) -> bool:
    wide = shape.window is None or max(shape.lengths) <= shape.window
    return wide and not shape.last_only and flash.has_kernel(q)


def attend_own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[H, N, E]`` and log-sum-exp ``[H, N]`` over each suffix alone, causally."""
    queries, keys = _paddings(shape, q.device)
    operands = queries.pad(q), keys.pad(k), keys.pad(v)
    if _by_kernel(q, shape):
        q_, k_, v_ = (x.transpose(0, 1) for x in operands)
        out, lse = (x.transpose(0, 1) for x in flash.attend(q_, k_, v_, shape.scaling, causal=True))
    else:
        repeat = q.shape[0] // k.shape[0]
        k_, v_ = (x.repeat_interleave(repeat, 0) for x in operands[1:])
        out, lse = attend_in_blocks(operands[0], k_, v_, shape.scaling, _hidden(shape, q.device))
    return queries.strip(out), queries.strip(lse)


def backward_own(
    do: torch.Tensor,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    merged: tuple[torch.Tensor, torch.Tensor],
    shape: Shape,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq ``[H, N, E]``, dk and dv ``[G, N, E]`` through each suffix's own keys.

    ``operands`` are q, k and v, ``merged`` the output and log-sum-exp over prefix and own keys together.
    """
    (q, k, v), (out, lse) = operands, merged
    queries, keys = _paddings(shape, q.device)
    q_, k_, v_ = queries.pad(q), keys.pad(k), keys.pad(v)
    if _by_kernel(q, shape):
        padded = (queries.pad_with_zeros(do.to(q.dtype)), q_, k_, v_, queries.pad(out), queries.pad(lse))
        given, q_, k_, v_, out, lse = (x.transpose(0, 1) for x in padded)
        found = flash.gradients(given, (q_, k_, v_), (out, lse), shape.scaling, causal=True)
        dq, dk, dv = (x.transpose(0, 1) for x in found)
        return queries.strip(dq), keys.strip(dk), keys.strip(dv)
    groups, dtype = k.shape[0], compute_dtype(q)
    repeat, do = q.shape[0] // groups, do.to(dtype)
    do_, d_ = queries.pad_with_zeros(do), queries.pad_with_zeros((do * out).sum(-1))
    q_, (k_, v_) = q_.to(dtype), (x.to(dtype).repeat_interleave(repeat, 0) for x in (k_, v_))
    weights = scores_of(q_, k_, shape.scaling).sub_(queries.pad(lse).unsqueeze(-1)).exp_()
    weights = weights.masked_fill_(_hidden(shape, q.device), 0.0)
    ds = (do_ @ v_.transpose(-1, -2)).sub_(d_.unsqueeze(-1)).mul_(weights).mul_(shape.scaling)
    dk, dv = (
        keys.strip(full.unflatten(0, (groups, repeat)).sum(1))
        for full in (ds.transpose(-1, -2) @ q_, weights.transpose(-1, -2) @ do_)
    )
    return queries.strip(ds @ k_), dk, dv
