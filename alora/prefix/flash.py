"""The fused kernels behind ``scaled_dot_product_attention``, for queries of many suffixes over one prefix.

They are called as ATen ops (torch 2.13), because only the ops return the log-sum-exp and accept a merged one:
the backward kernel computes ``P = exp(S - L)`` and ``D = rowsum(do * o)`` from whatever output and log-sum-exp it is
handed (FlashAttention, Dao et al. 2022, algorithm 4). With the *merged* ``o`` and ``L`` its gradient of the queries is
the prefix's share of the true one (see :mod:`alora.prefix.attention`); its gradients of keys and values are not wanted.

Shapes: G KV heads, Q folded query rows, T prefix tokens, E head width.
"""

import torch

# Where the backward kernel is the faster way. On a CPU, three products in blocks beat the kernel's five.
BACKWARD_ON = frozenset({"cuda"})
_LEAST_CAPABILITY = (8, 0)  # FlashAttention-2 needs Ampere
_HALF = (torch.bfloat16, torch.float16)
_CPU_DTYPES = (torch.float32, torch.float64, *_HALF)


def has_kernel(q: torch.Tensor) -> bool:
    """Whether a kernel takes these queries as they are: on a GPU half precision, and a width of 8 to 256 by eights."""
    if q.device.type == "cpu":
        return q.dtype in _CPU_DTYPES
    if q.device.type != "cuda" or q.dtype not in _HALF or q.shape[-1] % 8 or q.shape[-1] > 256:
        return False
    return torch.cuda.get_device_capability(q.device) >= _LEAST_CAPABILITY


def attend(
    q_GQE: torch.Tensor, k_GTE: torch.Tensor, v_GTE: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[G, Q, E]`` and log-sum-exp ``[G, Q]``, which is float32 or wider."""
    q, k, v = q_GQE[None], k_GTE[None], v_GTE[None]
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scaling)
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scaling)
    return out[0], lse[0]


def query_gradient(
    do_GQE: torch.Tensor,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    merged: tuple[torch.Tensor, torch.Tensor],
    scaling: float,
) -> torch.Tensor:
    """``dq [G, Q, E]`` through the prefix; ``operands`` are q, k and v, ``merged`` the output and log-sum-exp."""
    (q, k, v), out, lse = (x[None] for x in operands), merged[0][None].contiguous(), merged[1][None].contiguous()
    do, aten = do_GQE[None].contiguous(), torch.ops.aten
    if q.device.type == "cpu":
        dq, _, _ = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, out, lse, 0.0, False, scale=scaling
        )
        return dq[0]
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which is off
    # no cumulative lengths: a tensor there, even an empty one, asks for rows of many lengths, and CUDA refuses it
    dq, _, _ = aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, False, seed, seed[:0], scale=scaling
    )
    return dq[0]
