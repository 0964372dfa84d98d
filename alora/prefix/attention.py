"""Attention over ``[shared prefix | own suffix]``: the prefix is attended to once, whatever the number of suffixes.

A query q of a suffix sees the prefix keys and the earlier keys of its own suffix. With the scores split in two sets
1 (prefix) and 2 (own suffix), ``o_i`` the softmax output over set i alone and ``l_i = logsumexp`` of its scores,

    L = log(e^l1 + e^l2),      o = e^(l1 - L) o_1 + e^(l2 - L) o_2                                  (forward merge)

is the softmax over both. No mask is needed on the prefix, so the queries of all suffixes, and of the heads that share
a KV head, are folded into the rows of one matrix product per KV head. The gradient of each set needs the merged ``o``
and ``L`` alone: with ``P_i = exp(S_i - L)`` (already the final weights) and ``D = rowsum(do * o)``,

    dS_i = P_i * (do V_i^T - D),     dq += dS_i K_i,     dK_2 = dS_2^T q,     dV_2 = P_2^T do         (backward)

which is FlashAttention's backward (Dao et al. 2022, section 3.1) taken set by set. The prefix keys and values are
constants, so set 1 costs three products in place of five and stores nothing.

A sliding window W lets position i see j > i - W; it trims the prefix and masks what remains.

Shapes: H query heads, G KV heads, N packed rows of one conversation, S suffix positions, n suffixes, T prefix tokens,
E head width, Q = (H / G) * N folded query rows.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from alora.prefix import flash
from alora.prefix.own_suffix import Shape, attend_in_blocks, attend_own, backward_own, compute_dtype

# Of one block of backward scores: small enough to stay in a core's cache, large enough to fill a GPU.
_BLOCK_BYTES = {"cpu": 1024**2, "cuda": 64 * 1024**2}


def shared_prefix_attention(
    q_HNE: torch.Tensor,
    k_GNE: torch.Tensor,
    v_GNE: torch.Tensor,
    prefix_k_GTE: torch.Tensor,
    prefix_v_GTE: torch.Tensor,
    shape: Shape,
) -> torch.Tensor:
    """Attention output of every query, of all suffixes behind one prefix; differentiable in q, k and v.

    Queries are ``[H, N, E]``, or ``[H, n, E]`` where ``shape.last_only``. Scores and the merge are float32 for
    half-precision inputs, else in the inputs' own precision.
    """
    return _SharedPrefix.apply(q_HNE, k_GNE, v_GNE, prefix_k_GTE, prefix_v_GTE, shape)  # pyright: ignore[reportReturnType]


def attention_without_prefix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The same for suffixes that stand behind nothing, each by itself: ``[H, N, E]``."""
    outputs, start = [], 0
    for length in shape.lengths:
        part = slice(start, start + length)
        mask = None
        if shape.window is not None and length > shape.window:
            position = torch.arange(length, device=q.device)
            distance = position[:, None] - position[None, :]
            mask = (distance >= 0) & (distance < shape.window)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[None, :, part], k[None, :, part], v[None, :, part],
                attn_mask=mask, is_causal=mask is None, scale=shape.scaling, enable_gqa=True,
            )[0]
        )  # fmt: skip
        start += length
    return torch.cat(outputs, dim=1)


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, prefix_k, prefix_v, shape: Shape) -> torch.Tensor:
        seen_k, seen_v, visible = _visible_prefix(prefix_k, prefix_v, shape)
        o1, l1 = _attend_prefix(q, seen_k, seen_v, shape.scaling, visible)
        o2, l2 = attend_own(q, k, v, shape)
        lse_HN = torch.logaddexp(l1, l2)  # l1 is -inf where the window hides the whole prefix; this then gives l2
        share_HN1 = torch.sigmoid(l2 - l1).unsqueeze(-1)  # e^(l2 - L)
        out = torch.addcmul(share_HN1 * o2, 1 - share_HN1, o1, out=torch.empty_like(o1, dtype=q.dtype))
        # seen_k and seen_v are views of the prefix KV, so the prefix is not stored again
        ctx.save_for_backward(q, k, v, seen_k, seen_v, out, lse_HN)
        ctx.shape, ctx.visible = shape, visible
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        q, k, v, seen_k, seen_v, out, lse_HN = ctx.saved_tensors
        (do, *_), scaling = grads, ctx.shape.scaling
        # of the merged output: each set then needs nothing of the other
        dq2, dk, dv = backward_own(do, (q, k, v), (out, lse_HN), ctx.shape)
        if ctx.visible is None and q.device.type in flash.BACKWARD_ON and flash.has_kernel(q):
            dq1 = flash.query_gradient(do.to(q.dtype), (q, seen_k, seen_v), (out, lse_HN), scaling)
        else:
            do = do.to(lse_HN.dtype)
            rows = (do, (do * out).sum(-1), lse_HN)
            dq1 = _backward_prefix(q, seen_k, seen_v, rows, scaling, ctx.visible)
        return (dq1 + dq2).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _visible_prefix(
    prefix_k: torch.Tensor, prefix_v: torch.Tensor, shape: Shape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The prefix that any suffix position sees, and ``visible_NT`` where the window still hides a part of it."""
    length, window = prefix_k.shape[1], shape.window
    if window is None or length + max(shape.lengths) <= window:  # even the last position sees token 0
        return prefix_k, prefix_v, None
    first = max(0, length - window + 1)  # what the first suffix position sees; later ones see less
    return prefix_k[:, first:], prefix_v[:, first:], _prefix_visible(length, first, shape, prefix_k.device)


@lru_cache(maxsize=64)  # every layer of a pass asks
@torch.inference_mode(False)
def _prefix_visible(length: int, first: int, shape: Shape, device: torch.device) -> torch.Tensor:
    """Which prefix positions from ``first`` on each query sees: ``[N, T]``."""
    own = [range(count - 1 if shape.last_only else 0, count) for count in shape.lengths]
    own_N = torch.tensor([position for of_suffix in own for position in of_suffix]) + length
    return (torch.arange(first, length)[None, :] > own_N[:, None] - (shape.window or 0)).to(device)


def _fold(x_HNE: torch.Tensor, groups: int) -> torch.Tensor:
    """``[H, N, ...] -> [G, Q, ...]``: the heads of one KV head become more query rows."""
    return x_HNE.reshape(groups, -1, *x_HNE.shape[2:])


def _attend_prefix(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, visible_NT: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[H, N, E]`` and log-sum-exp ``[H, N]`` over the prefix alone."""
    heads, rows, width = q.shape
    if visible_NT is None and q.device.type in flash.BACKWARD_ON and flash.has_kernel(q):
        out, lse = flash.attend(q[None], k[None], v[None], scaling)  # it shares a KV head among query heads by itself
        return out[0], lse[0]
    q_GQE = _fold(q, k.shape[0])
    if visible_NT is None and flash.has_kernel(q):
        out, lse = (x[0] for x in flash.attend(q_GQE[None], k[None], v[None], scaling))
    else:
        hidden_QT = None if visible_NT is None else ~visible_NT.repeat(heads // k.shape[0], 1)
        out, lse = attend_in_blocks(q_GQE, k, v, scaling, hidden_QT)
    return out.reshape(heads, rows, width), lse.reshape(heads, rows)


def _backward_prefix(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scaling: float,
    visible_NT: torch.Tensor | None,
) -> torch.Tensor:
    """dq ``[H, N, E]`` through the prefix, in blocks of query rows so that no ``Q x T`` matrix is stored.

    Two blocks of scores are all the memory it takes; every product is written into one of them, with the subtraction
    of ``L`` or ``D`` folded into the product.
    """
    groups, dtype = k.shape[0], compute_dtype(q)
    q_GQE, (do, d, lse) = _fold(q, groups).to(dtype), (_fold(row, groups).contiguous() for row in rows)
    k_GTE, v_GTE = k.to(dtype), v.to(dtype)
    hidden = None if visible_NT is None else ~visible_NT.repeat(q.shape[0] // groups, 1)
    dq = torch.empty_like(q_GQE, memory_format=torch.contiguous_format)
    count, length = q_GQE.shape[1], k_GTE.shape[1]
    size = min(count, max(16, _BLOCK_BYTES.get(q.device.type, 1024**2) // max(1, length * q_GQE.element_size())))
    scratch = q_GQE.new_empty(2, size, length)
    for group in range(groups):
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            weights, ds = scratch[:, : part.stop - start]
            own = q_GQE[group, part]
            # exp(scaling q K^T - L): the final weights of both sets together
            torch.addmm(lse[group, part, None], own, k_GTE[group].T, beta=-1, alpha=scaling, out=weights).exp_()
            if hidden is not None:
                weights.masked_fill_(hidden[part], 0.0)
            # weights * (do V^T - D)
            torch.addmm(d[group, part, None], do[group, part], v_GTE[group].T, beta=-1, out=ds).mul_(weights)
            torch.mm(ds, k_GTE[group], out=dq[group, part])
    return dq.mul_(scaling).reshape(q.shape)
