"""Scores and the merge are float32 for half-precision inputs."""

import pytest
import torch

from alora.prefix.attention import Shape, shared_prefix_attention


@pytest.mark.parametrize("window", [None, 12])
def test_half_precision_inputs_are_rounded_once_more_and_no_further(window):
    generator = torch.Generator().manual_seed(0)
    q, k, v, prefix_k, prefix_v = (
        torch.randn(heads, rows, 16, generator=generator).bfloat16()
        for heads, rows in (
            (
                4,
                14,
            ),
            (2, 14),
            (2, 14),
            (2, 40),
            (2, 40),
        )
    )
    shape = Shape((6, 8), 2.0, window)
    found = shared_prefix_attention(q, k, v, prefix_k, prefix_v, shape)
    wanted = shared_prefix_attention(q.float(), k.float(), v.float(), prefix_k.float(), prefix_v.float(), shape)
    assert found.dtype == torch.bfloat16
    assert ((found.float() - wanted).abs() <= 0.01 * wanted.abs() + 0.01).all()
