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
    q_BHQE: torch.Tensor, k_BGTE: torch.Tensor, v_BGTE: torch.Tensor, scaling: float, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[B, H, Q, E]`` and log-sum-exp ``[B, H, Q]``, which is float32 or wider."""
    operands = (q_BHQE, k_BGTE, v_BGTE, 0.0, causal)
    if q_BHQE.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*operands, scale=scaling)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(*operands, scale=scaling)
    return out, lse


def gradients(
    do_BHQE: torch.Tensor,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    merged: tuple[torch.Tensor, torch.Tensor],
    scaling: float,
    causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of ``operands``, which are q, k and v; ``merged`` are the output and log-sum-exp."""
    (q, k, v), lse, aten = operands, merged[1].contiguous(), torch.ops.aten
    do, out = (x if x.stride(-1) == 1 else x.contiguous() for x in (do_BHQE, merged[0]))
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, out, lse, 0.0, causal, scale=scaling
        )
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which is off
    # no cumulative lengths: a tensor there, even an empty one, asks for rows of many lengths, and CUDA refuses it
    return aten._scaled_dot_product_flash_attention_backward(
        do, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, seed[:0], scale=scaling
    )


def query_gradient(
    do_GQE: torch.Tensor,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    merged: tuple[torch.Tensor, torch.Tensor],
    scaling: float,
) -> torch.Tensor:
    """``dq [G, Q, E]`` through the prefix, by :func:`gradients`."""
    q, k, v, out, lse = (x[None] for x in (*operands, *merged))
    return gradients(do_GQE[None], (q, k, v), (out, lse), scaling)[0][0]
